"""The warm interpreter of one context: imports once what scripts import, then forks instead of starting anew.

It has three kinds of processes. The *zygote* runs nothing but this file and forks inits. An *init* waits until the
runner has placed it, and serves jobs then, one after another; it does for each what the launcher does for other
scripts, and says it in the same words. The *script's process* is forked by an init that has never seen anything of
a job: it reads what it is to run, confines itself to the job's own directory, and runs it. So a job finds nothing
of another one, since no process that ran one, or read what one is, is ever forked from.

The zygote's standard output is the socket over which the runner asks for inits.
"""

import sys

# What a script that is started anew finds imported.
STARTED = frozenset(sys.modules)

import _signal
import array
import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import random
import resource
import select
import socket
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bootstrap

del sys.path[0], sys.modules["bootstrap"]

# What scripts import most, as far as this interpreter has it.
COMMON = """
    argparse array ast asyncio base64 bisect collections.abc concurrent.futures contextlib copy csv dataclasses datetime
    decimal difflib enum fractions functools glob gzip hashlib heapq hmac html inspect io itertools json logging math
    operator os pathlib pickle platform pprint queue random re secrets selectors shlex shutil signal socket statistics
    string struct subprocess sys tempfile textwrap threading time traceback types typing unicodedata urllib.error
    urllib.parse urllib.request uuid warnings weakref zlib
""".split()

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
SYS_CLOSE_RANGE, SYS_LANDLOCK_RESTRICT_SELF = 436, 446
LIMITS = {
    "cpu_secs": resource.RLIMIT_CPU,
    "address_space": resource.RLIMIT_AS,
    "open_files": resource.RLIMIT_NOFILE,
    "file_size": resource.RLIMIT_FSIZE,
    "processes": resource.RLIMIT_NPROC,
}
WRITERS = (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
DATAGRAM_BYTES_MAX = 64 * 1024
# How many processes are named at most when everything had to be killed.
ENDED_MAX = 64
# How long to wait for what was killed before looking again.
LOOK_INTERVAL_SECS = 0.02

# Everything between a fork and the script is paid for with each page that it touches, so it is kept plain: system
# calls as they are, no classes, no conversions.
LIBC = ctypes.CDLL(None, use_errno=True)
PRCTL, SYSCALL = LIBC.prctl, LIBC.syscall
PRCTL.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
SYSCALL.argtypes = [ctypes.c_long] * 4
# Without what `os.fork` does about other threads, since there are none: that alone takes longer than many a script.
FORK = ctypes.PyDLL(None, use_errno=True).fork
FORK.argtypes = []


def checked(result):
    """What a call of the C library gave, unless it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def own(descriptor):
    """A socket that keeps the boundaries of what is sent, made from its descriptor."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, descriptor)


def say(to, text):
    """Tells the runner something. Should it be gone, then that shows elsewhere."""
    try:
        to.send(text)
    except OSError:
        pass


def handed(through):
    """The descriptors that come with the next order, or nothing when no more will come."""
    space = socket.CMSG_SPACE(8 * array.array("i").itemsize)
    text, extra, _, _ = through.recvmsg(DATAGRAM_BYTES_MAX, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors) if text else None


# ---- the zygote


def main():
    # Signals to a whole service or terminal are no reason to leave jobs alone.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals() - {_signal.SIGCHLD})
    control = own(os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)
    warm_up()
    say(control, b'{"kind":"warm"}')
    # The kernel collects inits that have ended.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
    while True:
        descriptors = handed(control)
        if descriptors is None:
            os._exit(0)
        # Should it fail, then the runner sees the other end closed.
        if FORK() == 0:
            control.close()
            serve(own(descriptors[0]))
        for descriptor in descriptors:
            os.close(descriptor)


def warm_up():
    """Imports, and does once what every fork does, so that most of it is shared memory later on."""
    sys.path.insert(0, bootstrap.LIBRARY)
    for name in [*COMMON, "mycora"]:
        try:
            importlib.import_module(name)
        except ImportError:
            pass
    del sys.path[0]
    exec(compile("import json\njson.loads(json.dumps({'warm': [1]}))", "warm", "exec", dont_inherit=True), {})
    os.environ.clear()
    # Not even others of the same user may look into these processes, or change them.
    checked(PRCTL(PR_SET_DUMPABLE, 0, 0, 0, 0))
    gc.collect()
    gc.disable()
    gc.freeze()


# ---- the init of one job at a time


def serve(seat):
    """Serves the jobs that are handed over, one after another, until no more will come."""
    try:
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        wake, woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        _signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        checked(PRCTL(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
        say(seat, b'{"kind":"free","pid":%d}' % os.getpid())
        while True:
            descriptors = handed(seat)
            if descriptors is None:
                break
            job, request, out, err, *ruleset = descriptors
            init = Init(own(job), wake)
            init.begin(seat, request, out, err, ruleset)
            for descriptor in descriptors[1:]:
                os.close(descriptor)
            init.attend(seat)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class Init:
    """What is above everything that one job starts."""

    def __init__(self, job, wake):
        self.job = job
        self.wake = wake
        # The script's own process, while nobody has waited for it.
        self.script = None
        # What had to be killed beside it.
        self.ended = {}

    def begin(self, seat, request, out, err, ruleset):
        """Forks the script's process."""
        init = os.getpid()
        self.script = checked(FORK())
        if self.script == 0:
            try:
                seat.detach()
                become_script(self.job, request, out, err, ruleset, init)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)

    def attend(self, seat):
        """Waits for the script and for orders until nothing is left of the job."""
        poll = select.poll()
        poll.register(self.job, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        left = True
        while left:
            for descriptor, _ in poll.poll():
                if descriptor == self.wake:
                    os.read(self.wake, 4096)
                    left = self.collect()
                else:
                    left = self.obey()
                if not left:
                    break
        # Said before the job is over, so that it is known to be free as soon as that is.
        say(seat, b'{"kind":"free","pid":%d}' % os.getpid())
        ended = [{"pid": pid, "name": name} for pid, name in self.ended.items()]
        say(self.job, b'{"kind":"over","ended":%s}' % (json.dumps(ended).encode() if ended else b"[]"))
        self.job.close()

    def collect(self):
        """Waits for what has ended; whether anything is left."""
        exited = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                left = False
                break
            if pid == 0:
                left = True
                break
            if pid == self.script:
                self.script, exited = None, status
        if exited is not None:
            says_left = b"true" if left else b"false"
            if os.WIFSIGNALED(exited):
                say(self.job, b'{"kind":"signalled","signal":%d,"left":%s}' % (os.WTERMSIG(exited), says_left))
            else:
                say(self.job, b'{"kind":"exited","code":%d,"left":%s}' % (os.WEXITSTATUS(exited), says_left))
        return left

    def obey(self):
        """Does what the runner says, which is to end everything when it says no more; whether anything is left."""
        try:
            order = json.loads(self.job.recv(DATAGRAM_BYTES_MAX) or '{"kind": "kill"}')["kind"]
        except ConnectionError:
            order = "kill"
        if order == "terminate":
            self.terminate()
        elif order == "kill":
            return self.kill()
        return True

    def terminate(self):
        """Asks the script to end, and what it started in its own group."""
        if self.script is None:
            return
        try:
            os.killpg(self.script, _signal.SIGTERM)
        except ProcessLookupError:
            # It was not waited for, so its number is its own; its group comes in a moment.
            os.kill(self.script, _signal.SIGTERM)

    def kill(self):
        """Kills everything below until nothing is left. What loses its parent comes up to here."""
        while True:
            for pid, name in below(os.getpid()):
                try:
                    os.kill(pid, _signal.SIGKILL)
                except OSError:
                    continue
                if pid != self.script and len(self.ended) < ENDED_MAX:
                    self.ended.setdefault(pid, name)
            if not self.collect():
                return False
            # What was found is dying. Looked for again in any case: the list was not made in one moment.
            if select.select([self.wake], [], [], LOOK_INTERVAL_SECS)[0]:
                os.read(self.wake, 4096)


def below(ancestor):
    """Every process that descends from this one, with its name, and has not ended."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/" + entry + "/stat", "rb") as file:
                    text = file.read()
            except OSError:
                continue
            # The name, in parentheses, may contain anything.
            name, fields = text[text.index(b"(") + 1 : text.rindex(b")")], text[text.rindex(b")") + 2 :].split()
            # Its threads may go on without the first.
            ended = fields[0] in (b"Z", b"X") and fields[17] in (b"0", b"1")
            children.setdefault(int(fields[1]), []).append((int(entry), name.decode(errors="replace"), ended))
    found, ancestors = [], [ancestor]
    while ancestors:
        for pid, name, ended in children.get(ancestors.pop(), []):
            ancestors.append(pid)
            if not ended:
                found.append((pid, name))
    return found


# ---- the script's process


def become_script(job, request, out, err, ruleset, init):
    """Becomes the job's script; never returns."""
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    os.setsid()
    checked(PRCTL(PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0))
    if os.getppid() != init:
        os._exit(1)
    os.dup2(out, 1)
    os.dup2(err, 2)
    random.seed()
    threading.main_thread()._set_native_id()
    layer = "request"
    try:
        told = json.loads(os.pread(request, os.fstat(request).st_size, 0))
        layer = "limits"
        for name, most in told["limits"].items():
            if most is not None:
                limit(LIMITS[name], most)
        layer = "directory"
        os.chdir(told["dir"])
        # What another job's result has put into a variable may be none.
        layer = "exec"
        environment(told["env"])
        layer = "landlock"
        for descriptor in ruleset:
            checked(SYSCALL(SYS_LANDLOCK_RESTRICT_SELF, descriptor, 0, 0))
        layer = "session"
        checked(PRCTL(PR_SET_DUMPABLE, 1, 0, 0, 0))
    except Exception as error:
        say(job, json.dumps({"kind": "refused", "layer": layer, "detail": str(error)}).encode())
        os._exit(1)
    # Not a script that nobody would know to have run.
    job.send(b'{"kind":"started","pid":%d}' % os.getpid())
    job.detach()
    if SYSCALL(SYS_CLOSE_RANGE, 3, 0xFFFFFFFF, 0) < 0:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    gc.enable()
    unhide(bootstrap.places())
    known = len(sys.modules)
    finish(bootstrap.run(told["script"]), known)


def limit(resource_number, most):
    """Sets a limit that the script cannot lift, unless there is a lower one."""
    hard = resource.getrlimit(resource_number)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource_number, (most, most))


def environment(variables):
    """Gives the script its own environment; there is none before."""
    for name, value in variables.items():
        os.environ[name] = value
    if not ("LC_ALL" in variables or "LC_CTYPE" in variables or "LANG" in variables):
        # As the interpreter does when it starts without any locale (PEP 538).
        os.environ["LC_CTYPE"] = "C.UTF-8"
    if "TZ" in variables:
        time.tzset()


def unhide(directories):
    """Forgets what the job has modules of its own for: those come first where nothing is imported yet."""
    for directory in directories:
        try:
            entries = list(os.scandir(directory))
        except OSError:
            # Not made yet, or out of reach.
            continue
        for entry in entries:
            name, dot, suffix = entry.name.partition(".")
            if name in sys.modules and name not in STARTED and name != "mycora":
                if suffix == "py" or not dot and os.path.exists(os.path.join(entry.path, "__init__.py")):
                    for module in [known for known in sys.modules if known.partition(".")[0] == name]:
                        del sys.modules[module]


def finish(code, known):
    """Ends as the interpreter does, but for what only gives memory back: that would touch all that is shared."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        # Daemon threads run on until the very end; what they miss from here on is of no interest.
        threading.excepthook = lambda *_: None
        for thing in gc.get_objects():
            if type(thing) in WRITERS:
                flush(thing)
        # What a script holds ends with its modules, which came behind those of the interpreter.
        sys.modules.pop("__main__", None)
        while len(sys.modules) >= known:
            sys.modules.popitem()
        gc.collect()
    finally:
        flushed = all([flush(sys.stdout), flush(sys.stderr)])
        os._exit(code if flushed else 120)


def flush(file):
    """Writes out what waits in a file; whether that could be done."""
    try:
        if file is not None and not file.closed:
            file.flush()
    except Exception:
        return False
    return True


main()
