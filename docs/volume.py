"""What docs/reference/volume.md says besides the keys of a volume."""

from typing import Final

VOLUME_HEAD: Final = """\
# A volume's configuration

Printed by `make docs` from the model that reads it. A volume is a place for data that outlives jobs: `stoker apply -f
volume.yaml` makes it, `volumes:` of a task mounts it. `GET /api/schema/volume` is the same as JSON Schema, for editors.

```yaml
type: volume
name: data
size: 10GB
```
"""
VOLUME_MEANINGS: Final = {
    "type": ("`volume`: a place for data that outlives jobs.", "it has to be there"),
    "name": ("At most 63 small letters, digits and hyphens; one volume of a project has it.", "it has to be there"),
    "kind": ("`local`, `nfs` or `dummy`: below.", "`local`"),
    "size": ("Of a local one: `10GB`, a file system of its own; of a dummy one only a number.", "as large as the disk"),
    "instance": ("Where a local one is made.", "where its first job lands"),
    "fleet": ("On an instance of this fleet a local one is made.", "any"),
    "server": ("Of nfs: the host that has it.", ""),
    "path": ("Of nfs: the absolute path that it exports.", ""),
    "exclusive": ("`true`: one job at a time, the next one waits.", "`false`; a dummy one always is"),
    "tags": ("Your own words: `{team: vision}`.", ""),
}
VOLUME_TAIL: Final = """
Applied again, only `tags` may differ: what a volume is made of never changes, for what is in it would be lost.

## Kinds

- **`local`** is on the disk of one instance: the one that is named, or the one where the first job lands that wants
  it. From then on its jobs go there and nowhere else, and `stoker why` says so when there is no room. Without `size`
  it is a directory, as large as the disk; with `size` it is a file of that size with an ext4 file system, mounted
  while jobs use it: a full volume is full for its jobs and for nobody else. A size needs an agent with root and
  `mkfs.ext4`. Its data belongs to the user that the project's jobs have on that host. Several jobs may use it at once,
  unless it is `exclusive`. When its instance is gone, so is the volume: it is FAILED, and says where it was. An idle
  machine with a volume on it is not retired.
- **`nfs`** is a directory that a server exports, mounted on every host where a job wants it, while one does. The host
  needs root and `mount.nfs` (Debian: `nfs-common`). `stoker volume delete` forgets it, and deletes nothing on the
  server.
- **`dummy`** is a disk of the dummy backend: it can be slow to be made and stuck when it is detached (`stoker dummy
  disks`), is had by one job at a time and goes with its jobs from machine to machine.

## In a task

```yaml
volumes:
  - data:/data              # a volume, and where the job finds it
  - sets:/sets:ro           # only to read
  - {volume: cache, path: .cache}
  - /srv/images:/images:ro  # a directory of the host
```

A relative path begins in the job's own directory. No two may be at one place, and none inside of another. As root a
process sees its volumes in a view of the file system that only it has, at any path; a directory that the host lacks
there is made, empty, as long as a job needs it. Without root an agent can neither mount nor keep anybody from writing:
a relative path is then a link, and absolute paths, `:ro`, `size` and `nfs` are refused in words.

**Directories of the host** may be mounted by admins of the server, and on the server's own host (fleet `local`) only:
a container that runs as root would be root in them. For everybody else there are volumes.

## Its life

SUBMITTED, PROVISIONING, ACTIVE; FAILED when nobody can make it or its instance is gone; DELETING until nothing is
left, DELETED. [The table](machines.md#volume) says what leads where.

A job has its volumes from the commit that gives it its machine until the one that releases it. Before that they are
unmounted, and a disk of a provider is detached; what does not work is tried again, and said in `stoker events`, and
after five minutes it is forced: a host unmounts by `umount --lazy`, so that whoever has a file open keeps it; a
provider detaches by force. A job whose volume cannot be mounted ends as VOLUME_ERROR, with the words of the host.

`stoker volume delete` is refused while an unfinished run wants the volume. Who made it may delete it, and managers.
"""
