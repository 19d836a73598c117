"""Imports what programs of a test import, once, and forks a process for each program; run by a training's interpreter.

    warm_interpreter.py PID SOCKET FOLDER AGENT MODULE ...

It is to a program what the agent's standby is: the hooks are set (`process.prepare`), then the modules are imported,
and each fork becomes the attempt (`process.begin`). With an empty AGENT its programs are nobody's: no hook is set. A
request is one connection: a message with the words and environment of the program and its standard files; it is
answered by the program's pid and its status. It ends with the process PID, and FOLDER with it.
"""

import array
import gc
import importlib
import json
import os
import random
import selectors
import shutil
import signal
import socket
import sys
import types
import warnings
from pathlib import Path


def receive(connection):
    """Return the request and its standard files."""
    data, files = b"", array.array("i")
    while not data.endswith(b"\n"):
        part, ancillary, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(3 * files.itemsize))
        for _, _, passed in ancillary:
            files.frombytes(passed)
        data += part
    return json.loads(data), list(files)


def keep(connection, files):
    """Fork the program, and tell its pid and how it ended; return in the program alone."""
    ready, go = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(go)
        os.read(ready, 1)  # its pid is known before it can end
        os.close(ready)
        return
    for number in files:
        os.close(number)
    os.close(ready)
    try:
        connection.sendall(b"%d\n" % pid)
    except BrokenPipeError:  # who asked for it has ended
        os.kill(pid, signal.SIGKILL)
        os._exit(0)
    os.close(go)
    status = os.waitpid(pid, 0)[1]
    try:
        connection.sendall(b"%d\n" % (-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)))
    finally:
        os._exit(0)


def serve(address, owner):
    """Return the request of one program in the process that is to be it; end with the owner."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(address + ".part")
    listening.listen(16)
    Path(address + ".part").rename(address)
    selector = selectors.DefaultSelector()
    for item in (listening, owner):
        selector.register(item, selectors.EVENT_READ)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if any(key.fileobj == owner for key, _ in selector.select()):
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
        connection, _ = listening.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            selector.close()
            os.close(owner)
            request, files = receive(connection)
            keep(connection, files)
            connection.close()
            return request, files
        connection.close()


def take_on(request, files):
    """Become the program: its standard files, folder, environment and words, and the attempt's process."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for argument in request["warnings"]:
        warnings._processoptions([argument])
    sys.argv[:] = request["argv"]
    sys.orig_argv[:] = [sys.executable, *request["words"]]
    sys.path[0] = "" if request["code"] is not None else str(Path(request["argv"][0]).parent)
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    if agent:
        process.begin(os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"])
    else:
        sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))


def compile_program(request):
    """Return the code of the program and the module that it is."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if request["code"] is not None:
        return compile(request["code"], "<string>", "exec"), main
    main.__file__ = path = request["argv"][0]
    return compile(Path(path).read_bytes(), path, "exec"), main


owner_pid, socket_path, folder, agent, *modules = sys.argv[1:]
owner_ended = os.pidfd_open(int(owner_pid))
gc.disable()
if agent:
    sys.path.insert(1, agent)
    from rocm_agent import events, process

    events.hold()
    process.prepare(folder)
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # some modules have begun with a later version
            raise
gc.freeze()  # no program passes, and so copies, what was imported
gc.enable()
asked, standard = serve(socket_path, owner_ended)
take_on(asked, standard)
code, module = compile_program(asked)
# Outside of all functions and loops: nothing lies around the program's own frames but this module.
exec(code, module.__dict__)
