#!/bin/sh
# Makes a base backup and verifies it, and only then deletes older ones: movie-catalogue-backup.timer runs it each
# night. docs/operators/backup.md says how to begin, and how to restore "$BACKUP/base".
#
#   BACKUP        the folder, with wal/ of pg_receivewal; base is a link to the newest verified backup
#   BACKUP_URL    of the role for replication
#   BACKUP_KEEP   how many base backups stay, at least 1; 7 if it is not set
set -eu

fail() {
  echo "$1" >&2
  exit 1
}

keep=${BACKUP_KEEP:-7}
case $keep in
0* | *[!0-9]* | ?????*) fail "BACKUP_KEEP must be a whole number from 1 to 9999, not $keep" ;;
esac
[ -n "${BACKUP_URL:-}" ] || fail "BACKUP_URL is not set"
[ -n "${BACKUP:-}" ] && [ -d "$BACKUP/wal" ] || fail "BACKUP must be a folder with wal/, not ${BACKUP:-empty}"
new=base-$(date -u +%Y%m%dT%H%M%SZ)
[ -L "$BACKUP/base" ] || [ ! -e "$BACKUP/base" ] || fail "$BACKUP/base is a folder: rename it to $new"
[ ! -e "$BACKUP/$new" ] || fail "$BACKUP/$new exists: is the clock right?"

exec 9> "$BACKUP/lock"
flock -n 9 || fail "another backup is running"

# Also on Ctrl-C and a full disk: what is not verified only takes space.
trap 'rm -rf "$BACKUP"/unverified-*' EXIT
trap 'exit 1' HUP INT TERM
rm -rf "$BACKUP"/unverified-* # of a run that was killed
pg_basebackup -d "$BACKUP_URL" -D "$BACKUP/unverified-$new" --checkpoint=fast
pg_verifybackup --quiet "$BACKUP/unverified-$new"
mv "$BACKUP/unverified-$new" "$BACKUP/$new"
ln -sfn "$new" "$BACKUP/base"

# Lists the first WAL file and the name of each backup. A folder without a label is none, so it is never deleted.
list_backups() {
  for label in "$BACKUP"/base-*/backup_label; do
    folder=${label%/backup_label}
    sed -n 's/^START WAL.*file \(.*\))$/\1/p' "$label" | sed "s/\$/ ${folder##*/}/"
  done
}

# A new cluster (pg_upgrade, initdb) begins its timelines and positions anew, so its backups would seem to be the oldest.
newest=$(list_backups | sort | tail -n 1 | cut -d ' ' -f 1)
list_backups | grep -q "^$newest $new\$" || fail "$BACKUP has a backup later in the WAL ($newest) than $new. If the server is
a new one, move the backups of the former one and their wal/ elsewhere. Nothing was deleted"

# The order is that of timelines, then of positions in the WAL, as a clock may be wrong. The new one always stays.
# A backup that is being deleted has another name, so that half of it is never taken for a backup.
list_backups | grep -v " $new\$" | sort -r | tail -n "+$keep" | while read -r _ old; do
  mv "$BACKUP/$old" "$BACKUP/unverified-$old"
done
# Delete WAL that only deleted backups needed. pg_archivecleanup compares positions without timelines (8 digits).
pg_archivecleanup "$BACKUP/wal" "$(list_backups | sort -k 1.9 | head -n 1 | cut -d ' ' -f 1)"
