#!/bin/sh
# Make a virtual environment from the flat lock: install.sh VENV
# The lock is complete, so nothing is resolved (--no-deps). See docs/adr/0004-flat-lock.md.
set -eu
venv=$1
here=$(cd "$(dirname "$0")" && pwd)

python=""
for candidate in "${PYTHON:-}" python3.11 python3 python; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "orchestrate is tested on Python 3.11 and its lock is for 3.11; none was found." >&2
    echo "Install it (Debian: apt-get install python3.11-venv; uv: uv python install 3.11)" >&2
    echo "or name it: make PYTHON=/path/to/python3.11" >&2
    exit 2
fi

"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.8

# torch's CPU build is not on PyPI: take it from where pip is set up to look, else from PyTorch's index.
torch=$(grep '^torch==' "$here/cpu.lock")
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$torch" 2>/dev/null ||
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --index-url https://download.pytorch.org/whl/cpu "$torch"

# Compiled bytecode: without it every process takes 20 s instead of 8 to import vLLM.
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --compile-bytecode --no-deps \
    -r "$here/cpu.lock" --editable "$here/.."
touch "$venv/.installed"
