"""Checks that the documentation is true of this repository.

- Every relative link in README.md, CONTRIBUTING.md, CHANGELOG.md and docs/**/*.md leads to a file, and its
  `#fragment` to a heading.
- Every `$ lockstep …` and `$ make …` line in a fenced `console` block names a command, options and a target
  that exist.
- Every `test_…` that a page names is a test.
- The table in docs/adapters.md is what the adapters declare.
- No text file of the repository names a path that exists only on somebody's machine.

Prints one line per problem, as `file:line: problem`, and exits with 1 if there is any.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*([\w-]*)")
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s+<?(\S+?)>?(?:\s|$)")
_CODE_SPAN = re.compile(r"(`+).+?\1")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$")
_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
_EXTERNAL = re.compile(r"^[a-z][a-z0-9+.-]*:|^//", re.IGNORECASE)
_TARGET = re.compile(r"^([a-z][\w-]*):", re.MULTILINE)
# An absolute path below a folder that differs between machines; not a part of a URL or of a longer path.
_MACHINE_PATH = re.compile(r"(?<![\w./:~$}*-])/(?:home|root|work|tmp|Users|var/folders)/[\w.-]+")
_TEST = re.compile(r"`(test_\w+)`")
_TEST_MADE = re.compile(r"^\s*def (test_\w+)\(", re.MULTILINE)
_SHELL_STOPS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1"})


@dataclass(frozen=True, order=True)
class Problem:
    """Something in the documentation that is not so."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT).as_posix()}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Line:
    """One line of a Markdown page and the language of the fence it stands in; None outside of fences."""

    number: int
    text: str
    fence: str | None


def pages() -> list[Path]:
    """The Markdown pages to check."""
    named = [ROOT / name for name in PAGES]
    return [page for page in named if page.exists()] + sorted((ROOT / "docs").rglob("*.md"))


def lines_of(page: Path) -> Iterator[Line]:
    """The page's lines without the fences' own."""
    fence, language = "", ""
    for number, text in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        mark = _FENCE.match(text)
        if mark and not fence:
            fence, language = mark[1], mark[2]
        elif mark and mark[1].startswith(fence) and not mark[2]:
            fence = ""
        else:
            yield Line(number, text, language if fence else None)


def check_links(page: Path) -> Iterator[Problem]:
    """Relative links of the page that lead nowhere."""
    for line in lines_of(page):
        if line.fence is not None:
            continue
        prose = _CODE_SPAN.sub("", line.text)
        for target in [*_LINK.findall(prose), *_REFERENCE.findall(prose)]:
            if _EXTERNAL.match(target):
                continue
            name, _, fragment = unquote(target).partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.is_relative_to(ROOT) or not file.exists():
                yield Problem(page, line.number, f"link to {target}, which does not exist")
            elif fragment and file.suffix == ".md" and fragment not in _anchors(file):
                yield Problem(page, line.number, f"link to {target}, but there is no such heading")


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The fragments that can be linked to on the page, made from its headings as GitHub makes them."""
    anchors: set[str] = set()
    for line in lines_of(page):
        anchors.update(_ANCHOR.findall(line.text))
        heading = _HEADING.match(line.text) if line.fence is None else None
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
            slug = base = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            repeat = 0
            while slug in anchors:
                repeat += 1
                slug = f"{base}-{repeat}"
            anchors.add(slug)
    return frozenset(anchors)


def check_commands(page: Path) -> Iterator[Problem]:
    """Commands in the page's `console` blocks that do not exist."""
    for number, command in _console_commands(page):
        try:
            words = shlex.split(command, comments=True)
        except ValueError as error:
            yield Problem(page, number, f"the shell cannot read '{command}': {error}")
            continue
        while words and re.match(r"^[A-Z_]+=", words[0]):
            words = words[1:]
        words = words[: next((at for at, word in enumerate(words) if word in _SHELL_STOPS), len(words))]
        problem = None
        if words and Path(words[0]).name == "lockstep":
            problem = _lockstep_problem(words[1:])
        elif words and words[0] == "make":
            problem = _make_problem(words[1:])
        if problem:
            yield Problem(page, number, problem)


def _console_commands(page: Path) -> Iterator[tuple[int, str]]:
    start, parts = 0, list[str]()
    for line in lines_of(page):
        text = line.text.strip()
        if line.fence != "console" or (not parts and not text.startswith("$ ")):
            parts.clear()
            continue
        if not parts:
            start, text = line.number, text.removeprefix("$ ")
        parts.append(text.removesuffix("\\"))
        if not text.endswith("\\"):
            yield start, " ".join(parts)
            parts.clear()


def _import_from_root() -> None:
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))


@cache
def _cli() -> Any:
    """The click command behind the `lockstep` program, or the line that says why there is none."""
    _import_from_root()
    try:
        import typer.main

        return typer.main.get_command(importlib.import_module("cli.main").app)
    except (ImportError, AttributeError) as error:
        return f"cli.main:app cannot be loaded ({error})"


def _lockstep_problem(words: list[str]) -> str | None:
    command, said, rest = _cli(), "lockstep", list(words)
    if isinstance(command, str):
        return command
    while rest:
        word = rest.pop(0)
        if word == "--":
            return None
        if word.startswith("-") and len(word) > 1:
            option, has_value, _ = word.partition("=")
            known = {name: param for param in command.params for name in [*param.opts, *param.secondary_opts]}
            if option in {"--help", "--install-completion", "--show-completion"}:
                continue
            if option not in known:
                return f"'{said}' has no option {option}"
            parameter = known[option]
            if not (has_value or getattr(parameter, "is_flag", False) or getattr(parameter, "count", False)):
                del rest[: parameter.nargs]
        elif subcommands := getattr(command, "commands", None):
            if word not in subcommands:
                return f"'{said}' has no command {word}"
            command, said = subcommands[word], f"{said} {word}"
    return None


def _make_problem(words: list[str]) -> str | None:
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    unknown = [word for word in words if not word.startswith("-") and "=" not in word and word not in targets]
    return f"there is no make target {unknown[0]}" if unknown else None


def check_tests(page: Path) -> Iterator[Problem]:
    """Tests that the page names and that do not exist."""
    for line in lines_of(page):
        for name in _TEST.findall(line.text) if line.fence is None else ():
            if name not in _tests():
                yield Problem(page, line.number, f"names {name}, which is no test")


@cache
def _tests() -> frozenset[str]:
    sources = [file for file in repository_files() if file.suffix == ".py"]
    return frozenset(
        name for file in sources for name in _TEST_MADE.findall(file.read_text(encoding="utf-8"))
    )


def check_machine_paths(files: Iterable[Path]) -> Iterator[Problem]:
    """Places where a file names a path of one machine."""
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # not text, or deleted but still in the index
        for number, line in enumerate(text.splitlines(), start=1):
            if found := _MACHINE_PATH.search(line):
                yield Problem(file, number, f"names a path of one machine: {found[0]}")


def repository_files() -> list[Path]:
    """Every file that is, or would be, under version control."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # an exported tree
        return sorted(path for path in ROOT.rglob("*") if path.is_file() and not _hidden(path))
    return sorted({ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()})


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)


def check_adapter_table(page: Path) -> Iterator[Problem]:
    """The table of adapters where it is not what their classes declare."""
    if not page.exists():
        return
    _import_from_root()
    from adapters.capture_table import generated

    written = page.read_text(encoding="utf-8").splitlines()
    try:
        wanted = generated(page.read_text(encoding="utf-8")).splitlines()
    except (ValueError, ImportError) as error:
        yield Problem(page, 1, f"the table of adapters cannot be made: {error}")
        return
    for number, (is_, should) in enumerate(zip_longest(written, wanted), start=1):
        if is_ != should:
            yield Problem(
                page, number, "the code says otherwise; write the table anew by 'make adapter-table'"
            )
            return


def problems() -> list[Problem]:
    """Everything that is wrong, in the order of files and lines."""
    per_page: list[Callable[[Path], Iterator[Problem]]] = [check_links, check_commands, check_tests]
    found = [problem for page in pages() for check in per_page for problem in check(page)]
    found += check_adapter_table(ROOT / "docs" / "adapters.md")
    return sorted([*found, *check_machine_paths(repository_files())])


def main() -> int:
    """Runs every check; returns the exit code."""
    found = problems()
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{len(pages())} pages, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
