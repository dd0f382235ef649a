"""What docs/reference/fleet.md says of hosts that are reached by SSH."""

from typing import Final

_HAS_TO_BE: Final = "it has to be there"

SSH_HEAD: Final = """\
## Hosts of yours

```yaml
type: fleet
name: office
ssh_config:
  user: ubuntu
  identity_file: ~/.ssh/id_ed25519
  network: 10.0.0.0/16
  hosts:
    - gpu-1.example.org
    - {host: gpu-2.example.org, user: root, port: 2222, blocks: auto}
```
"""

SSH_MEANINGS: Final = {
    "hosts": ("Names or addresses, or maps with `host` and what differs for it.", _HAS_TO_BE),
    "user": ("Who logs in there.", "it has to be there, or with each host"),
    "identity_file": ("The private key without a passphrase, a file on your machine.", "the key of the project"),
    "proxy_jump": ("The host through which the others are reached: a map with `host`.", "none"),
    "network": ("The network in which they reach each other, as 10.0.0.0/16.", "as the server reaches them"),
}
SSH_HOST_MEANINGS: Final = {
    "host": ("Its name or its address.", _HAS_TO_BE),
    "port": ("Where its sshd listens.", "that of all"),
    "user": ("Who logs in there.", "that of all"),
    "identity_file": ("The private key.", "that of all"),
    "proxy_jump": ("The host through which it is reached.", "that of all"),
    "ip": ("The address at which other hosts reach it.", "one in `network`"),
    "blocks": ("Into how many equal parts it is divided.", "that of the fleet"),
}
SSH_JUMP_MEANINGS: Final = {
    "host": ("Its name or its address.", _HAS_TO_BE),
    "user": ("Who logs in there.", "that of the host behind it"),
    "identity_file": ("The private key.", "that of the host behind it"),
}

SSH_TAIL: Final = """

- **What a host needs**: Linux on the processor of the server, an `sshd` that lets unix sockets be forwarded (as it
  does unless somebody forbade it), `tar`, and 60 MB. As root, or as a user with `sudo` without a password, its agents
  are root's, and jobs run as users of their projects. Another user's host runs the jobs of one project, as that user.
- **How it comes**: connect, check, ship the agents (only what has changed since), start them, read what it has.
  `stoker fleet get -w NAME` shows each step, `stoker instance get` the last ones. What fails says what to do and is
  tried again, at longer and longer intervals up to half a minute; a host that is off is waited for.
- **Who keeps the agent running**: systemd where there is one (`stoker-host.service`), else cron, by two lines in its
  user's table. Where there is neither, this server starts it again when it can reach the host.
- **GPUs** are those that its NVIDIA driver knows. Others are described in `shim/settings.json` below the agents'
  directory, which an agent reads when it starts and which then says all there are:
  `{"gpus": [{"index": 0, "id": "GPU-1", "name": "A100", "memory_mb": 81920, "vendor": "nvidia"}]}`.
- **Keys.** `stoker apply` sends the file that `identity_file` names where you are, and the server keeps it sealed
  with `seal.key` of its home, which is not in the database; replicas of a server have the same file. Nothing shows it
  again. Without `identity_file` it is the project's own key, whose public half `stoker project key` prints.
- **Host keys** are pinned when a host is met first. A changed one is refused; `stoker instance trust NAME` shows both
  and takes the new one.
- **One host, one fleet.** A host that another fleet names is refused, and by another name as soon as it is met.
- **Over one connection** goes everything to a host and its jobs. Agents listen on unix sockets only, and want their
  token. When the connection breaks it is made again; jobs do not notice. A host that is out of reach for longer is
  *unreachable*, with what stands in the way, and each job's `disconnect` says what follows.
- **Upgrades** of the server bring the agents along. What runs goes on.
- **How it leaves**: when the file does not name it any more, with `stoker fleet delete`, or `stoker instance delete`
  (after which a host that is still named comes anew). Agents, their directory (`/var/lib/stoker/host`, or
  `~/.stoker/host`), the unit, the lines of cron and the images that they pulled are removed. A host out of reach
  stays TERMINATING until it is reached, or until `stoker instance delete --force` says that it is gone.
"""
