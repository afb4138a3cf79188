"""Statements that change a shell's state, and a command that shows all of it that they change."""

from __future__ import annotations

STATEMENTS = [
    "cd -- FOLDER",
    "cd -- FOLDER",
    "cd ..",
    "X=1",
    "X='other; rm -rf /nowhere'",
    "X=$'two\\nlines'",
    "X=$'declare -x FAKE=\"1\"\\ndeclare -- Y=2'",
    "export X",
    'export Y="quote\' \\" \\\\ $ \\`"',
    "Y=$'\\xff\\xfe'",
    "unset X",
    "unset -v HOME",
    "export HOME=/elsewhere",
    "export LATE=$RANDOM; LATE=1",
    "LIST=(1 'two words' $'three\\nlines'); unset 'LIST[0]'",
    "declare -A MAP=([key]='a value' [$'k\\n2']=\"}\")",
    "declare -i N=7; N+=1",
    "declare -r FIXED='for good'",
    "declare -n REFERENCE=X",
    'f() { echo "f $1"; }',
    "f() { cat <<'EOF'\n}\nf2 () { :; }\nEOF\n}",
    "export -f f",
    "unset -f f",
    "g() ( echo in a subshell )",
    "h() { if true; then echo '}'; fi; } >&2",
    "function odd-name.1 { :; }",
    "umask 027",
    "umask 022",
    "alias ll='ls -l'",
    "alias two=$'echo 1\\necho 2'",
    "unalias ll two",
    "shopt -s extglob globstar",
    "shopt -u extglob",
    "set -f",
    "set +f",
    "set -u -o pipefail",
    "set +u",
    "trap 'echo bye' EXIT",
    "trap $'echo 1\\necho 2' USR1",
    "trap - USR1 EXIT",
    "false",
    "exit 3",
]

NAMES = "X Y HOME LATE LIST MAP N FIXED REFERENCE FAKE"
PROBE = (
    f"{{ for each in {NAMES}; do declare -p $each; done; declare -f; declare -F; umask; alias -p;"
    ' shopt -p; set +o; trap -p; printf "\\0%s" "$PWD"; } 2>/dev/null'
)
