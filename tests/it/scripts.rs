//! Access of scripts to the suite that runs them: as root, which gives each context a user of its own, and as an
//! ordinary user, who owns the suite's keys as well as the scripts' processes.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::suite::{Up, flow_file};

/// A user without any rights of its own.
const NOBODY: u32 = 65534;

/// Returns the users that a suite is started as.
fn users() -> Vec<Option<u32>> {
    // Only root can start one as another user.
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if is_root { vec![None, Some(NOBODY)] } else { vec![None] }
}

fn python() -> &'static str {
    "import ctypes, os, socket, struct, sys\n\
     libc = ctypes.CDLL(None, use_errno=True)\n\
     problems = []\n\
     def tries(name, way):\n\
     \x20   try: way()\n\
     \x20   except PermissionError: pass\n\
     \x20   except OSError as error: problems.append('%s failed: %s' % (name, error))\n\
     \x20   else: problems.append('%s went through' % name)\n"
}

/// Everything that a job with the network tries; it fails with what went through.
fn reach(up: &Up, listed: u16, datagrams: u16) -> String {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
    // Sends nothing; where no route leads out, loopback is all that this machine has.
    let own = socket.connect(("192.0.2.1", 9)).and_then(|()| socket.local_addr());
    let own = own.map_or_else(|_| "127.0.0.3".to_owned(), |address| address.ip().to_string());
    format!(
        "{python}\
         def connect(kind, address, port):\n\
         \x20   s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, kind)\n\
         \x20   s.settimeout(5); s.connect((address, port)); s.send(b'x')\n\
         def send(address, port):\n\
         \x20   socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (address, port))\n\
         for address in ('127.0.0.1', '127.0.0.2', '0.0.0.0', '::1', '::', '::ffff:127.0.0.1', '{own}', '169.254.169.254'):\n\
         \x20   for port in ({port}, {ops}):\n\
         \x20       tries('tcp %s %d' % (address, port), lambda: connect(socket.SOCK_STREAM, address, port))\n\
         \x20   tries('udp ' + address, lambda: connect(socket.SOCK_DGRAM, address, {datagrams}))\n\
         \x20   tries('sendto ' + address, lambda: send(address, {datagrams}))\n\
         tries('bind', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(('127.0.0.1', {free})))\n\
         tries('listen', lambda: socket.socket().listen())\n\
         connect(socket.SOCK_STREAM, '127.0.0.1', {listed})\n\
         sys.exit('; '.join(problems) or 0)\n",
        python = python(),
        port = up.port(),
        ops = up.port() + 100,
        free = testkit::free_port(),
    )
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("      {line}\n")).collect()
}

#[test]
fn a_job_with_the_network_reaches_no_port_of_the_suite() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listed = listener.local_addr().expect("its address").port();
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    udp.set_nonblocking(true).expect("a socket");
    let datagrams = udp.local_addr().expect("its address").port();
    for user in users() {
        let dir = tempfile::tempdir().expect("a directory");
        let policy = dir.path().join("policy.toml");
        let rules = format!("[default]\nhosts = [\"*\"]\naddresses = [\"127.0.0.1:{listed}\"]\n");
        std::fs::write(&policy, rules).expect("a policy");
        let policy = policy.to_str().expect("a plain path");
        let up = Up::start_as(user, &dir.path().join("data"), &["--policy", policy]);
        let script = reach(&up, listed, datagrams);
        let flow = format!(
            "name: reach\njobs:\n\
             \x20 python:\n    script_type: python\n    network: true\n    script: |\n{}\
             \x20 shell:\n    script_type: shell\n    network: true\n    script: |\n{}\
             \x20 sal:\n    script_type: sal\n    network: true\n    script: |\n{}",
            indented(&script),
            indented(&format!("python3 - <<'END'\n{script}END\n")),
            indented(&format!(
                "let ran = run(\"python3\", [\"-c\", {script:?}]);\n\
                 if ran.code != 0 {{ throw ran.err; }}\n\
                 for port in [{}, {}] {{\n  let got = ();\n  try {{ got = http_get(`http://127.0.0.1:${{port}}/`); }} catch {{ continue; }}\n\
                 \x20 throw `http reached ${{port}}: ${{got}}`;\n}}",
                up.port(),
                up.port() + 100
            )),
        );
        let file = flow_file(dir.path(), &flow);
        let ended = up.mycora(&["flow", "submit", &file, "--watch"]);
        let printed = String::from_utf8_lossy(&up.mycora(&["flow", "logs", "1"]).stdout).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{user:?}: {ended:?}\n{printed}");
        assert!(udp.recv(&mut [0; 8]).is_err(), "nothing came");
        up.stop();
    }
}

/// Everything about a file that its owner can change, and the time of the last change.
fn state(path: &Path) -> (u32, u32, u32, i64, i64) {
    let found = std::fs::metadata(path).expect("it is there");
    (found.mode(), found.uid(), found.gid(), found.ctime(), found.ctime_nsec())
}

#[test]
fn no_script_opens_the_keys_of_the_suite_to_others() {
    for user in users() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        // Not the directory above, which would give scripts the suite's own as well.
        let place = dir.path().join("place");
        std::fs::create_dir(&place).expect("a directory");
        let place = place.to_str().expect("a plain path");
        let up = Up::start_as(user, &data, &["--allow-write", place]);
        let key = data.join("pki/ca.key");
        let before = [state(&key), state(&data.join("pki")), state(&data)];
        let script = format!(
            "{python}\
             import errno\n\
             def call(number, *args):\n\
             \x20   if libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in (number, *args)]) < 0:\n\
             \x20       raise OSError(ctypes.get_errno(), 'refused')\n\
             key, pki = '{key}', '{pki}'\n\
             os.symlink(key, 'link')\n\
             paths = [key, pki, 'link', '{data}']\n\
             try: paths.append('/proc/self/fd/%d' % os.open(key, os.O_PATH))\n\
             except PermissionError: pass\n\
             for path in paths:\n\
             \x20   tries('chmod ' + path, lambda: os.chmod(path, 0o666))\n\
             \x20   tries('chown ' + path, lambda: os.chown(path, os.getuid(), os.getgid()))\n\
             \x20   tries('utime ' + path, lambda: os.utime(path))\n\
             \x20   tries('setxattr ' + path, lambda: os.setxattr(path, 'user.x', b'x'))\n\
             \x20   try: fd = os.open(path, os.O_PATH)\n\
             \x20   except PermissionError: continue\n\
             \x20   tries('fchmodat2 ' + path, lambda: call(452, fd, b'', 0o666, 0x1000))\n\
             open('own', 'w').close()\n\
             os.chmod('own', 0o750); os.utime('own', (1, 2)); os.mkdir('d'); os.chmod('d', 0o777)\n\
             if os.stat('own').st_mode & 0o777 != 0o750: problems.append('own')\n\
             sys.exit('; '.join(problems) or 0)\n",
            python = python(),
            key = key.display(),
            pki = data.join("pki").display(),
            data = data.display(),
        );
        let shell = format!(
            "set -e\n! chmod 666 {key} || exit 1\n! touch {key} || exit 1\n\
             echo 'echo runs' > tool; chmod +x tool; ./tool; cp -p tool other; tar -cf x.tar tool; tar -xpf x.tar\n",
            key = key.display()
        );
        let flow = format!(
            "name: keys\njobs:\n\
             \x20 python:\n    script_type: python\n    script: |\n{}\
             \x20 shell:\n    script_type: shell\n    script: |\n{}",
            indented(&script),
            indented(&shell)
        );
        let file = flow_file(dir.path(), &flow);
        let ended = up.mycora(&["flow", "submit", &file, "--watch"]);
        let printed = String::from_utf8_lossy(&up.mycora(&["flow", "logs", "1"]).stdout).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{user:?}: {ended:?}\n{printed}");
        assert_eq!([state(&key), state(&data.join("pki")), state(&data)], before, "{user:?}");
        up.stop();
    }
}
