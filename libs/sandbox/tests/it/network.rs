//! Where a script with the network can connect: to no address of this machine but the listed ones.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType};
use sandbox::{BrokerRules, Confinement, InitCommand, InitEvent, SyscallRules};
use testkit::{PATIENCE, wait_until};

use crate::setup::{SandboxTestDir, end_of};

/// A job with the network that reaches these inner addresses.
fn networked(place: &SandboxTestDir, listed: &[String]) -> Confinement {
    let addresses = listed.iter().map(|range| range.parse().unwrap()).collect();
    let broker = BrokerRules { addresses: Some(addresses), ..BrokerRules::default() };
    Confinement { syscalls: Some(SyscallRules { network: true }), broker, ..place.confined() }
}

/// Returns the confinement of a networked script without the broker.
fn unguarded(place: &SandboxTestDir) -> Confinement {
    Confinement { broker: BrokerRules::default(), ..networked(place, &[]) }
}

/// An address that this machine has been given, when it has any beside loopback.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    // Sends nothing.
    socket.connect(("192.0.2.1", 9)).ok()?;
    Some(socket.local_addr().unwrap().ip().to_string())
}

/// Calls that scripts make by hand, since Python has no names for them.
const BY_HAND: &str = r#"
import ctypes, errno, os, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
class Iovec(ctypes.Structure):
    _fields_ = [('base', ctypes.c_char_p), ('length', ctypes.c_size_t)]
class Msghdr(ctypes.Structure):
    _fields_ = [('name', ctypes.c_char_p), ('namelen', ctypes.c_uint), ('iov', ctypes.POINTER(Iovec)),
                ('iovlen', ctypes.c_size_t), ('control', ctypes.c_void_p), ('controllen', ctypes.c_size_t),
                ('flags', ctypes.c_int)]
class Mmsghdr(ctypes.Structure):
    _fields_ = [('header', Msghdr), ('length', ctypes.c_uint)]
def v4(address, port, family=socket.AF_INET):
    return struct.pack('=H', family) + struct.pack('>H', port) + socket.inet_aton(address) + bytes(8)
def checked(result):
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def sendmmsg(s, address, *texts):
    messages = (Mmsghdr * len(texts))()
    for one, text in zip(messages, texts):
        one.header.iov, one.header.iovlen = ctypes.pointer(Iovec(text, len(text))), 1
        if address: one.header.name, one.header.namelen = address, len(address)
    sent = checked(libc.sendmmsg(s.fileno(), messages, len(texts), 0))
    return [one.length for one in messages[:sent]]
"#;

/// Tries each way to the ports; what gets through is printed by its name.
const WAYS: &str = r#"
tcp, udp, own = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
def tries(name, way):
    try: way()
    except PermissionError: print('refused', name)
    except OSError as error: print('failed', name, errno.errorcode.get(error.errno))
    else: print('in', name)
def of(address):
    return socket.AF_INET6 if ':' in address else socket.AF_INET
def connect(address, kind, port):
    s = socket.socket(of(address), kind)
    s.settimeout(5)
    s.connect((address, port))
def sends(address, family=None):
    return socket.socket(family or of(address), socket.SOCK_DGRAM).sendto(b'x', (address, udp))
def fast_open():
    socket.socket().sendto(b'x', socket.MSG_FASTOPEN, ('127.0.0.1', tcp))
def fast_open_later():
    s = socket.socket()
    s.setsockopt(socket.IPPROTO_TCP, 30, 1)
    s.connect(('127.0.0.1', tcp)); s.sendall(b'x')
def without_waiting():
    s = socket.socket(); s.setblocking(False)
    result = s.connect_ex(('127.0.0.1', tcp))
    if result != errno.EINPROGRESS: checked(-1) if ctypes.set_errno(result) else checked(-1)
def unspecified_family():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    address = v4('127.0.0.1', udp, socket.AF_UNSPEC)
    checked(libc.sendto(s.fileno(), b'x', 1, 0, address, len(address)))
def v4_on_v6():
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    address = v4('127.0.0.1', udp)
    checked(libc.sendto(s.fileno(), b'x', 1, 0, address, len(address)))
def in_a_thread():
    errors = []
    def run():
        try: connect('127.0.0.1', socket.SOCK_STREAM, tcp)
        except OSError as error: errors.append(error)
    thread = threading.Thread(target=run); thread.start(); thread.join()
    if errors: raise errors[0]
def in_a_child():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        try: connect('127.0.0.1', socket.SOCK_STREAM, tcp)
        except PermissionError: os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]: raise PermissionError
for address in ['127.0.0.1', '127.0.0.2', '0.0.0.0', '::1', '::', '::ffff:127.0.0.1', '::ffff:0.0.0.0', *own]:
    tries('tcp ' + address, lambda: connect(address, socket.SOCK_STREAM, tcp))
    tries('udp ' + address, lambda: connect(address, socket.SOCK_DGRAM, udp))
    tries('sendto ' + address, lambda: sends(address))
    tries('sendmsg ' + address, lambda: socket.socket(of(address), socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, (address, udp)))
for address in ['169.254.169.254', '100.100.100.200', 'fd00:ec2::254', 'fe80::1', '224.0.0.1', 'ff02::1', '255.255.255.255']:
    tries('sendto ' + address, lambda: sends(address))
tries('sendmmsg', lambda: sendmmsg(socket.socket(type=socket.SOCK_DGRAM), v4('127.0.0.1', udp), b'x', b'y'))
for way in (fast_open, fast_open_later, without_waiting, unspecified_family, v4_on_v6, in_a_thread, in_a_child):
    tries(way.__name__, way)
"#;

#[tokio::test]
async fn no_address_of_this_machine_is_reached() {
    let place = SandboxTestDir::new();
    let tcp = TcpListener::bind("[::]:0").unwrap();
    let udp = UdpSocket::bind("[::]:0").unwrap();
    udp.set_nonblocking(true).unwrap();
    let ports = [tcp.local_addr(), udp.local_addr()].map(|address| address.unwrap().port().to_string());
    let script = format!("{BY_HAND}{WAYS}");
    let mut args = vec!["-I", "-c", &script, &ports[0], &ports[1]];
    let own = own_address();
    args.extend(own.as_deref());
    for owner in [None, Some(1_900_000_779)] {
        let confinement = Confinement { owner, ..networked(&place, &[]) };
        let kept = place.run("/usr/bin/python3", &args, confinement).await;
        assert_eq!(kept.code, Some(0), "{kept:?}");
        let refused = kept.output.lines().filter(|line| line.starts_with("refused ")).count();
        // An address of no family is none, although it may have been read as one of IPv4.
        let others: Vec<_> = kept.output.lines().filter(|line| !line.starts_with("refused ")).collect();
        assert_eq!(others, ["failed unspecified_family EAFNOSUPPORT"], "{kept:?}");
        assert_eq!(refused, (7 + usize::from(own.is_some())) * 4 + 7 + 7, "{kept:?}");
    }
    assert!(udp.recv(&mut [0; 8]).is_err(), "nothing came");
    tcp.set_nonblocking(true).unwrap();
    assert!(tcp.accept().is_err(), "nobody came");
    let broken = place.run("/usr/bin/python3", &args, unguarded(&place)).await;
    for way in [
        "tcp 127.0.0.1",
        "tcp ::1",
        "sendto ::ffff:127.0.0.1",
        "sendmsg 0.0.0.0",
        "sendmmsg",
        "fast_open_later",
        "v4_on_v6",
    ] {
        assert!(broken.output.lines().any(|line| line == format!("in {way}")), "{way}: {broken:?}");
    }
}

/// Listed addresses are reached by every call, as they would be without the broker.
#[tokio::test]
async fn what_is_listed_is_reached_by_every_way() {
    let place = SandboxTestDir::new();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let [port, datagrams] = [tcp.local_addr(), udp.local_addr()].map(|address| address.unwrap().port());
    let echo = std::thread::spawn(move || {
        let mut text = [0; 16];
        let mut got = Vec::new();
        for _ in 0..6 {
            let (length, from) = udp.recv_from(&mut text).unwrap();
            got.push(String::from_utf8_lossy(&text[..length]).into_owned());
            udp.send_to(&text[..length], from).unwrap();
        }
        got
    });
    let reading = std::thread::spawn(move || {
        let mut lengths = Vec::new();
        for _ in 0..2 {
            let mut bytes = Vec::new();
            tcp.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
            lengths.push(bytes.len());
        }
        lengths
    });
    let script = format!(
        r#"{BY_HAND}
there = ('127.0.0.1', {datagrams})
s = socket.socket(type=socket.SOCK_DGRAM)
s.bind(('', 0))
s.sendto(b'one', there); print(s.recv(16))
s.sendmsg([b'two ', b'parts'], [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack('i', 16))], 0, there); print(s.recv(16))
print(sendmmsg(s, v4(*there), b'three', b'a')); print(s.recv(16), s.recv(16))
s.connect(there)
print(sendmmsg(s, None, b'four')); print(s.recv(16))
s.send(b'five'); print(s.recv(16))
checked(libc.connect(s.fileno(), v4('0.0.0.0', 0, socket.AF_UNSPEC), 16))
try: s.getpeername()
except OSError: print('alone')
s = socket.create_connection(('127.0.0.1', {port}), timeout=20)
s.sendall(bytes(3000000)); s.close()
s = socket.create_connection(('127.0.0.1', {port}))
text, sent = bytes(1000000), 0
while sent < len(text): sent += s.sendmsg([text[sent:sent + 600000]])
s.close()
try: socket.create_connection(('127.0.0.1', {other}))
except PermissionError: print('refused')
"#,
        other = if port == 1 { 2 } else { port - 1 }
    );
    let listed = [format!("127.0.0.1:{port}"), format!("127.0.0.1:{datagrams}")];
    let outcome = place.run("/usr/bin/python3", &["-I", "-c", &script], networked(&place, &listed)).await;
    let expected = "b'one'\nb'two parts'\n[5, 1]\nb'three' b'a'\n[4]\nb'four'\nb'five'\nalone\nrefused\n";
    assert_eq!(outcome.output, expected, "{outcome:?}");
    assert_eq!(echo.join().unwrap(), ["one", "two parts", "three", "a", "four", "five"]);
    assert_eq!(reading.join().unwrap(), [3_000_000, 1_000_000]);
}

/// The address that is decided on is the one that is connected to, whatever another thread makes of it meanwhile.
#[tokio::test]
async fn an_address_that_changes_meanwhile_leads_nowhere_else() {
    let place = SandboxTestDir::new();
    let script = format!(
        r#"{BY_HAND}
address = ctypes.create_string_buffer(v4('192.0.2.1', 9), 16)
one, other = v4('192.0.2.1', 9), v4('127.0.0.1', 9)
done = False
def flip():
    while not done:
        ctypes.memmove(address, other, 16); ctypes.memmove(address, one, 16)
threads = [threading.Thread(target=flip) for _ in range(2)]
for thread in threads: thread.start()
sys.setswitchinterval(1e-5)
refused = reached = 0
s = socket.socket(type=socket.SOCK_DGRAM)
for _ in range(1000000):
    if libc.connect(s.fileno(), address, 16) < 0: refused += 1
    elif s.getpeername()[0].startswith('127.'): reached += 1
    # How often the threads take turns is up to the machine.
    if reached or refused == 300: break
done = True
print(reached, refused)
"#
    );
    let kept = place.run("/usr/bin/python3", &["-I", "-c", &script], networked(&place, &[])).await;
    assert!(kept.output == "0 300\n", "{kept:?}");
    let broken = place.run("/usr/bin/python3", &["-I", "-c", &script], unguarded(&place)).await;
    assert!(broken.output == "1 0\n", "{broken:?}");
}

/// A listener that accepts no connection: its queue is full.
fn full_listener() -> (OwnedFd, TcpStream, u16) {
    let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = SocketAddrV4::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
    let first = TcpStream::connect(address).unwrap();
    (listener, first, address.port())
}

#[tokio::test]
async fn a_connection_that_waits_holds_up_no_other() {
    let place = SandboxTestDir::new();
    let (_listener, _first, full) = full_listener();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    let script = format!(
        r#"
import errno, os, signal, socket, threading
s = socket.socket(); s.setblocking(False)
print(errno.errorcode[s.connect_ex(('127.0.0.1', {full}))])
def waits(): socket.create_connection(('127.0.0.1', {full}))
for _ in range(4): threading.Thread(target=waits, daemon=True).start()
child = os.fork()
if child == 0: waits()
for _ in range(20): socket.create_connection(('127.0.0.1', {port}))
os.kill(child, signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print('in', flush=True)
signal.pause()
"#
    );
    let listed = [format!("127.0.0.1:{full}"), format!("127.0.0.1:{port}")];
    let (mut child, mut out) =
        place.start("/usr/bin/python3", &["-I", "-c", &script], networked(&place, &listed));
    assert!(matches!(child.next().await.unwrap(), Some(InitEvent::Started { .. })));
    let reading = std::thread::spawn(move || {
        let mut text = [0; 64];
        let mut got = String::new();
        while !got.ends_with("in\n") {
            let length = out.read(&mut text).unwrap();
            assert_ne!(length, 0, "{got}");
            got.push_str(&String::from_utf8_lossy(&text[..length]));
        }
        (got, out)
    });
    let (got, out) = reading.join().unwrap();
    assert_eq!(got, "EINPROGRESS\n-9\nin\n");
    // Of the five that waited, four still do: the one whose process was killed is not waited for.
    let tasks = format!("/proc/{}/task", child.pid());
    let own = 3;
    let is_left = || async { (std::fs::read_dir(&tasks).unwrap().count() == own + 4).then_some(()) };
    wait_until(is_left, PATIENCE, "what nobody waits for has ended").await;
    child.send_command(InitCommand::Kill).await.unwrap();
    assert_eq!(end_of(child, out).await.signal, Some(9), "what waits does not keep it from ending");
}

/// A script that serves a port could be taken for one of this machine's services.
#[tokio::test]
async fn no_port_is_bound_or_served() {
    let place = SandboxTestDir::new();
    let attack = "import socket\n\
                  for family, address in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')):\n\
                  \x20 for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n\
                  \x20   s = socket.socket(family, kind)\n\
                  \x20   try: s.bind((address, 23917)); print('bound')\n\
                  \x20   except PermissionError: print('refused')\n\
                  \x20   s.bind((address, 0)); print('any')\n\
                  \x20   if kind == socket.SOCK_STREAM:\n\
                  \x20     try: s.listen(); print('serves')\n\
                  \x20     except PermissionError: print('refused')";
    let kept = place.run("/usr/bin/python3", &["-I", "-c", attack], networked(&place, &[])).await;
    assert_eq!(kept.output, "refused\nany\nrefused\nrefused\nany\n".repeat(2), "{kept:?}");
    let open = Confinement { syscalls: None, files: None, ..unguarded(&place) };
    let broken = place.run("/usr/bin/python3", &["-I", "-c", attack], open).await;
    assert!(broken.output.ends_with("bound\n"), "a socket is bound once: {broken:?}");
}

/// A packet could go elsewhere first, or a socket connect by other calls than those that are known.
#[tokio::test]
async fn no_way_leads_around_addresses() {
    let place = SandboxTestDir::new();
    let attack = "import socket as s, struct\n\
                  for level, option in ((0, 4), (41, 57), (41, 5), (41, 6), (41, 32)):\n\
                  \x20 try: s.socket(s.AF_INET if level == 0 else s.AF_INET6, s.SOCK_DGRAM).setsockopt(level, option, b''); print('set')\n\
                  \x20 except PermissionError: pass\n\
                  \x20 except OSError: print('asked')\n\
                  for kind, protocol in ((s.SOCK_STREAM, 132), (s.SOCK_SEQPACKET, 0), (s.SOCK_STREAM, 262), (s.SOCK_DGRAM, 136), (6, 33)):\n\
                  \x20 try: s.socket(s.AF_INET, kind, protocol); print('made')\n\
                  \x20 except PermissionError: pass\n\
                  \x20 except OSError: print('asked')\n\
                  a = s.socket(s.AF_INET6, s.SOCK_DGRAM)\n\
                  try: a.sendmsg([b'x'], [(41, 57, bytes(8))], 0, ('2001:db8::1', 9)); print('sent')\n\
                  except PermissionError: pass\n\
                  except OSError: print('asked')\n\
                  print('done')";
    let kept = place.run("/usr/bin/python3", &["-I", "-c", attack], networked(&place, &[])).await;
    assert_eq!(kept.output, "done\n", "{kept:?}");
    let open = Confinement { syscalls: None, ..unguarded(&place) };
    let broken = place.run("/usr/bin/python3", &["-I", "-c", attack], open).await;
    assert!(broken.output.lines().count() > 8, "{broken:?}");
}

/// Processes in a job talk to each other over socket pairs, and pass descriptors on.
#[tokio::test]
async fn pairs_go_on_as_before() {
    let place = SandboxTestDir::new();
    let script = "import os, socket\n\
                  for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):\n\
                  \x20 a, b = socket.socketpair(type=kind)\n\
                  \x20 r, w = os.pipe()\n\
                  \x20 socket.send_fds(a, [b'take'], [w, w])\n\
                  \x20 text, fds, _, _ = socket.recv_fds(b, 16, 4)\n\
                  \x20 os.write(fds[1], b'through'); print(text, len(fds), os.read(r, 16))\n\
                  \x20 print(a.sendmsg([b'x' * 1000, b'y']), len(b.recv(4096)))\n\
                  \x20 try: a.sendmsg([b'x'], [(socket.SOL_SOCKET, 2, bytes(12))])\n\
                  \x20 except PermissionError: print('refused')\n\
                  import asyncio\n\
                  asyncio.run(asyncio.sleep(0)); print('done')";
    let outcome = place.run("/usr/bin/python3", &["-I", "-c", script], networked(&place, &[])).await;
    let expected = "b'take' 2 b'through'\n1001 1001\nrefused\n".repeat(2) + "done\n";
    assert_eq!(outcome.output, expected, "{outcome:?}");
}
