"""The same work with nothing around it: a session, two output files and wait4 for each `/bin/true`.

The stated form is `posix_spawn` in as many Python threads as the worker has slots: what a worker in Python could do at
best if nobody asked it for anything. The same in C says what the machine itself can do.

Making two files costs as much as the process does, so there are two bare loops: with `fresh` files that stay, as tasks
have that keep their output on the host, and with files that serve one task after the other, as the worker's own do.
Each of ours is compared with the one that does the same.
"""

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

from bench.home import temporary_home
from bench.swarm.peers import Missing

COMMAND = "/bin/true"

_C = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

extern char **environ;
static const char *home;
static int each, fresh;

static void *loop(void *slot) {
    posix_spawnattr_t session;
    posix_spawnattr_init(&session);
    posix_spawnattr_setflags(&session, POSIX_SPAWN_SETSID);
    for (int i = 0; i < each; i++) {
        char out[4096], err[4096], *argv[] = {"/bin/true", NULL};
        posix_spawn_file_actions_t files;
        struct rusage used;
        pid_t pid;
        int status;
        snprintf(out, sizeof out, "%s/%ld-%d.stdout", home, (long)slot, fresh ? i : 0);
        snprintf(err, sizeof err, "%s/%ld-%d.stderr", home, (long)slot, fresh ? i : 0);
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_addopen(&files, 1, out, O_WRONLY | O_CREAT | O_APPEND, 0644);
        posix_spawn_file_actions_addopen(&files, 2, err, O_WRONLY | O_CREAT | O_APPEND, 0644);
        if (posix_spawn(&pid, argv[0], &files, &session, argv, environ)) exit(1);
        if (wait4(pid, &status, 0, &used) != pid || status) exit(1);
        posix_spawn_file_actions_destroy(&files);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[64];
    long slots = atol(argv[2]);
    home = argv[1];
    each = atoi(argv[3]) / slots;
    fresh = atoi(argv[4]);
    for (long i = 0; i < slots; i++) pthread_create(&threads[i], NULL, loop, (void *)i);
    for (long i = 0; i < slots; i++) pthread_join(threads[i], NULL);
    return 0;
}
"""


def python_rate(number: int, slots: int, *, fresh: bool) -> float:
    """Tasks a second."""
    with temporary_home() as home:
        each, failed = number // slots, threading.Event()
        threads = [threading.Thread(target=_loop, args=(home, slot, each, fresh, failed)) for slot in range(slots)]
        begun = time.perf_counter()
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        seconds = time.perf_counter() - begun
    if failed.is_set():
        raise ValueError(f"{COMMAND} failed")
    return each * slots / seconds


def c_rate(number: int, slots: int, *, fresh: bool) -> float:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Missing("this machine has no C compiler")
    with temporary_home() as home:
        (home / "bare.c").write_text(_C)
        program = str(home / "bare")
        subprocess.run([compiler, "-O2", "-pthread", "-o", program, str(home / "bare.c")], check=True, timeout=60)
        begun = time.perf_counter()
        subprocess.run([program, str(home), str(slots), str(number), str(int(fresh))], check=True, timeout=300)
        return number / (time.perf_counter() - begun)


def _loop(home: Path, slot: int, number: int, fresh: bool, failed: threading.Event) -> None:
    flags, env = os.O_WRONLY | os.O_CREAT | os.O_APPEND, dict(os.environb)
    for each in range(number):
        path = f"{home}/{slot}-{each if fresh else 0}"
        files = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, path + ".stdout", flags, 0o644),
            (os.POSIX_SPAWN_OPEN, 2, path + ".stderr", flags, 0o644),
        ]
        pid = os.posix_spawn(COMMAND, [COMMAND], env, file_actions=files, setsid=True)
        _, status, _ = os.wait4(pid, 0)
        if status:
            failed.set()
