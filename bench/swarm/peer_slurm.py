"""Slurm from Debian: munged, slurmctld and slurmd on loopback, tuned to schedule at once, without accounting.

It has 64 slots on the two cores, since with two it is several times slower: most of a short job is its own round trips.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.home import temporary_home
from bench.swarm import peers
from bench.swarm.process import started, until

SLOTS = 64
START_S = 60.0
PATIENCE_S = 300.0
END_S = 20.0

_CONFIGURATION = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={next_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge.sock
CredType=cred/munge
PluginDir={plugins}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
MailProg=/bin/true
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MaxArraySize=20001
MaxJobCount=50000
MinJobAge=10
NodeName={host} NodeAddr=127.0.0.1 CPUs={slots} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_PLUGIN = "usr/lib/*/slurm-wlm/auth_munge.so"


@dataclass(frozen=True)
class Cluster:
    home: Path
    tree: Path
    env: dict[str, str]

    def ask(self, program: str, *arguments: str) -> str:
        command = [str(peers.program(self.tree, f"usr/bin/{program}")), *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        return done.stdout.strip()

    def rate(self, number: int) -> float:
        """An array of `true`. Output files are made when tasks begin: the last one tells when all is nearly done."""
        script = self._script("true.sh", "exec /bin/true")
        out = self.home / "out"
        out.mkdir()
        begun = time.time()
        self.ask("sbatch", "--output", f"{out}/%a", f"--array=1-{number}", script)
        until(lambda: len(os.listdir(out)) >= number, PATIENCE_S, f"an array of {number}", 0.05)
        return number / (max(one.stat().st_mtime for one in out.iterdir()) - begun)

    def start_ms(self, tries: int) -> float:
        stamp, taken = self.home / "stamp", []
        script = self._script("stamp.sh", f"date +%s.%N > {stamp}.new; mv {stamp}.new {stamp}")
        for _ in range(tries):
            begun = time.time()
            self.ask("sbatch", "--output", "/dev/null", script)
            until(stamp.exists, PATIENCE_S, "the start of a job")
            taken.append((float(stamp.read_text()) - begun) * 1000)
            stamp.unlink()
            time.sleep(0.5)
        return statistics.median(taken)

    def link_ms(self, number: int) -> float:
        done, before, begun = self.home / "done", "", time.time()
        for each in range(number):
            last = each == number - 1
            script = self._script(f"{last}.sh", f"touch {done}" if last else "exec /bin/true")
            after = [f"--dependency=afterok:{before}"] if before else []
            before = self.ask("sbatch", "--parsable", "--output", "/dev/null", *after, script)
        until(done.exists, PATIENCE_S, f"a chain of {number}")
        return (done.stat().st_mtime - begun) * 1000 / number

    def _script(self, name: str, text: str) -> str:
        path = self.home / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        return str(path)


@contextmanager
def cluster() -> Iterator[Cluster]:
    tree = peers.debian(*peers.SLURM)
    with temporary_home() as home:
        for name in ("state", "spool"):
            (home / name).mkdir()
        configuration = home / "slurm.conf"
        configuration.write_text(_configured(home, tree))
        env = peers.libraries(tree) | {"SLURM_CONF": str(configuration)}
        munged, slurmctld, slurmd, slurmstepd = (
            str(peers.program(tree, f"usr/sbin/{name}"))
            for name in ("munged", "slurmctld-wlm", "slurmd-wlm", "slurmstepd-wlm")
        )
        with started(_munged(munged, home), home / "munged.out", env):
            until((home / "munge.sock").exists, START_S, "munged's socket")
            control = [slurmctld, "-D", "-i", "-f", str(configuration)]
            node = [slurmd, "-D", "-N", "localhost", "-f", str(configuration), "-d", slurmstepd]
            with started(control, home / "slurmctld.out", env), started(node, home / "slurmd.out", env):
                made = Cluster(home, tree, env)
                until(lambda: _idle(made), START_S, "an idle node of Slurm", 0.2)
                try:
                    yield made
                finally:
                    _leave_no_step(made)


def _leave_no_step(made: Cluster) -> None:
    """The step of a job is nobody's child, and one whose end nobody heard of before the others ended stays for ever."""
    with suppress(TimeoutError, subprocess.SubprocessError):
        until(lambda: not made.ask("squeue", "--noheader"), END_S, "the end of all jobs", 0.2)
    mark = made.env["SLURM_CONF"]
    for one in psutil.process_iter():
        try:
            if one.name().startswith("slurmstepd") and one.environ().get("SLURM_CONF") == mark:
                one.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def _idle(made: Cluster) -> bool:
    try:
        return made.ask("sinfo", "--noheader", "--format", "%T") == "idle"
    except subprocess.CalledProcessError:
        return False


def _munged(program: str, home: Path) -> list[str]:
    key = home / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    files = {"--key-file": key, "--socket": home / "munge.sock", "--pid-file": home / "munge.pid"}
    files |= {"--seed-file": home / "munge.seed", "--log-file": home / "munge.log"}
    named = [str(part) for pair in files.items() for part in pair]
    return [program, "--force", "--foreground", *named]


def _configured(home: Path, tree: Path) -> str:
    found = [*tree.glob(_PLUGIN), *Path("/").glob(_PLUGIN)]
    if not found:
        raise peers.Missing("the plugins of Slurm are not where Debian puts them")
    plugins = found[0].parent
    port = 20_000 + os.getpid() % 20_000
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    return _CONFIGURATION.format(
        home=home, host="localhost", port=port, next_port=port + 1, user=user, plugins=plugins, slots=SLOTS
    )
