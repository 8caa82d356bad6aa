#!/bin/sh
# Makes a base backup and verifies it, and only then deletes older ones: movie-catalogue-backup.timer runs it each
# night. docs/operators/backup.md says how to begin, and how to restore "$BACKUP/base".
#
#   BACKUP        the folder, with wal/ of pg_receivewal; base is a link to the newest verified backup
#   BACKUP_URL    of the role for replication
#   BACKUP_KEEP   how many base backups stay; 7 if it is not set
set -eu

if [ -e "$BACKUP/base" ] && [ ! -L "$BACKUP/base" ]; then
  echo "$BACKUP/base is a folder: rename it to base-$(date -u +%Y%m%dT%H%M%SZ)" >&2
  exit 1
fi

new=base-$(date -u +%Y%m%dT%H%M%SZ)
rm -rf "$BACKUP"/unverified-* # of a run that failed
pg_basebackup -d "$BACKUP_URL" -D "$BACKUP/unverified-$new" --checkpoint=fast
pg_verifybackup --quiet "$BACKUP/unverified-$new"
mv "$BACKUP/unverified-$new" "$BACKUP/$new"
ln -sfn "$new" "$BACKUP/base"

# The names sort by time.
ls -d "$BACKUP"/base-* | head -n "-${BACKUP_KEEP:-7}" | xargs -r -d '\n' rm -r --
# Delete WAL that only deleted backups needed.
oldest=$(ls -d "$BACKUP"/base-* | head -n 1)
pg_archivecleanup "$BACKUP/wal" "$(sed -n 's/^START WAL.*file \(.*\))$/\1/p' "$oldest/backup_label")"
