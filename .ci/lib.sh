# Shell functions of .ci/run.

step() {
  printf '\n== %s  [%dm%02ds]\n' "$1" "$((SECONDS / 60))" "$((SECONDS % 60))"
}

# A bare Debian Python has no ensurepip; python3-venv brings it.
ensure_venv_module() {
  if ! python3 -c 'import ensurepip' 2>/dev/null; then
    step "Installing python3-venv"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv
  fi
}

# Browser tests drive Debian's Chromium; where it cannot be installed they must not pass unseen, so this fails.
ensure_chromium() {
  if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null
  fi
  chromium --version
  chromedriver --version
}

# The fenced block of README.md that follows the marker <!-- command: NAME -->.
readme_command() {
  awk -v marker="<!-- command: $1 -->" '
    $0 == marker { armed = 1; next }
    armed && /^```/ { if (inside) exit; inside = 1; next }
    inside { print; found = 1 }
    END { exit !found }
  ' README.md
}

# pytest with a selection; "nothing collected" (exit 5) is fine while a marker has no tests yet.
tests() {
  local code=0
  "$bin/pytest" "$@" || code=$?
  [[ $code -eq 0 || $code -eq 5 ]]
}
