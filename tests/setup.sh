#!/usr/bin/env bash
# Installs what only some tests need: Debian packages when root, npm packages when npm is there.
# Tests whose part is missing are skipped with a message, and fail instead where CI is set.
set -euo pipefail
