"""MariaDB as a source: changes from its row binlog or by triggers."""
