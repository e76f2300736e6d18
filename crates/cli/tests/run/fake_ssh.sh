#!/usr/bin/env bash
# What ssh does with a command, on this machine: another session, an environment of its own, pipes
# between, and the status of the command. Host `down` cannot be reached.
# Usage: fake_ssh.sh [-v] HOST COMMAND...
[ "$1" = -v ] && shift
host=$1
shift
if [ "$host" = down ]; then
  echo "ssh: connect to host down port 22: Connection refused" >&2
  exit 255
fi
[ -z "$FAKE_FOLDER" ] || echo $$ >"$FAKE_FOLDER/$host"
[ "$host" != chatty ] || echo "Welcome to $host"
env -i PATH="$PATH" TEST_MARK="$TEST_MARK" FAKE_HOST="$host" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" \
  setsid -w sh -c "$*" < <(cat) > >(cat)
