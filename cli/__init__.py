"""The `lockstep` command."""

import os

# gRPC reads it when it is imported. Its own lines on stderr would be neither one clear line nor JSON.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
