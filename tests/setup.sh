#!/usr/bin/env bash
# Installs what only some tests need: Debian packages when root, npm packages when npm is there.
# Tests whose part is missing are skipped with a message, and fail instead where CI is set.
set -euo pipefail
cd "$(dirname "$0")"

# The OpenTelemetry SDK for Node and for browsers.
if ! command -v npm >/dev/null; then
  echo "npm is not there: the tests with Node and with a browser are skipped"
elif [ ! node/node_modules/.package-lock.json -nt node/package-lock.json ]; then
  npm ci --prefix node --ignore-scripts --no-audit --no-fund --loglevel=error ||
    echo "npm could not install: the tests with Node and with a browser are skipped"
fi

# A browser.
if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then
  :
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null ||
    echo "Chromium could not be installed: the tests with a browser are skipped"
else
  echo "Chromium is not there: the tests with a browser are skipped"
fi

# A Prometheus server and promtool. Debian starts the server at once where there is an init system; nobody wants that.
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
  :
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends prometheus; } >/dev/null 2>&1 ||
    echo "Prometheus could not be installed: the tests with a Prometheus server are skipped"
else
  echo "Prometheus is not there: the tests with a Prometheus server are skipped"
fi

# Datadog's own test agent, in an environment of its own: it pins older libraries than ours.
agent=../.venv/test-agent
if [ ! -x ../.venv/bin/python ]; then
  echo "there is no .venv: run make test; the tests with Datadog's test agent are skipped"
elif [ ! "$agent/.installed" -nt test-agent.lock ]; then
  { ../.venv/bin/python -m venv "$agent" &&
    "$agent/bin/pip" install --quiet --disable-pip-version-check -r test-agent.lock && touch "$agent/.installed"; } ||
    echo "Datadog's test agent could not be installed: its tests are skipped"
fi
