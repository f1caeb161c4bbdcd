//! The network, which a script has only when it asked for it.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use sandbox::{Confinement, SyscallRules};

use crate::setup::SandboxTestDir;

#[tokio::test]
async fn no_port_is_reached_without_the_network() {
    let place = SandboxTestDir::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let attack = format!("import socket; socket.create_connection(('127.0.0.1', {port})); print('in')");
    let python = async |confinement| place.run("/usr/bin/python3", &["-I", "-c", &attack], confinement).await;
    let kept = python(place.confined()).await;
    assert!(kept.code == Some(1) && kept.output.contains("PermissionError"), "{kept:?}");
    let requested = Confinement { syscalls: Some(SyscallRules { network: true }), ..place.confined() };
    for confinement in [requested, Confinement { syscalls: None, ..place.confined() }] {
        let broken = python(confinement).await;
        assert_eq!(broken.output, "in\n", "{broken:?}");
    }
}

/// Also with the network: the sockets of this machine's services, such as a Redis, are no network.
#[tokio::test]
async fn no_local_socket_is_reached() {
    let place = SandboxTestDir::new();
    let path = place.dir.join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let name = format!("mycora-{}", std::process::id());
    let _hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let with_network = || Confinement { syscalls: Some(SyscallRules { network: true }), ..place.confined() };
    for address in [format!("{:?}", path.display().to_string()), format!("'\\0{name}'")] {
        let attack =
            format!("import socket; s = socket.socket(socket.AF_UNIX); s.connect({address}); print('in')");
        let python =
            async |confinement| place.run("/usr/bin/python3", &["-I", "-c", &attack], confinement).await;
        for confinement in [place.confined(), with_network()] {
            let kept = python(confinement).await;
            assert!(kept.code == Some(1) && kept.output.contains("PermissionError"), "{address}: {kept:?}");
        }
        let broken = python(Confinement::default()).await;
        assert_eq!(broken.output, "in\n", "{address}: {broken:?}");
    }
    // Without the filter of system calls, the scope of Landlock still keeps it from sockets without a path.
    let attack = format!("import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0{name}')");
    let scoped = Confinement { syscalls: None, ..place.confined() };
    let kept = place.run("/usr/bin/python3", &["-I", "-c", &attack], scoped).await;
    assert!(kept.output.contains("PermissionError"), "{kept:?}");
}

/// A pair is connected to itself, but of some kinds each end sends elsewhere as well; and a family that is asked for
/// is loaded into the kernel before it says that it has no pairs.
#[tokio::test]
async fn a_pair_of_sockets_leads_nowhere_else() {
    let place = SandboxTestDir::new();
    let theirs = UnixDatagram::bind(place.dir.join("socket")).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let attack = "import socket as s\nfor kind in (s.SOCK_DGRAM, s.SOCK_RAW, s.SOCK_DGRAM | s.SOCK_CLOEXEC):\n  \
                  try: s.socketpair(s.AF_UNIX, kind)[0].sendto(b'in', 'socket'); print('in')\n  \
                  except PermissionError: pass\n\
                  for family in (2, 16, 30, 38, 40):\n  try: s.socketpair(family, s.SOCK_STREAM)\n  \
                  except PermissionError: pass\n  except OSError: print('asked')\n\
                  for kind in (s.SOCK_STREAM, s.SOCK_SEQPACKET, s.SOCK_STREAM | s.SOCK_NONBLOCK):\n  s.socketpair(s.AF_UNIX, kind)\n\
                  print('pairs')";
    let python =
        async |confinement| place.run("/usr/bin/python3", &["-I", "-c", attack], confinement).await.output;
    for network in [false, true] {
        let kept = python(Confinement { syscalls: Some(SyscallRules { network }), ..place.confined() }).await;
        assert_eq!(kept, "pairs\n");
    }
    assert!(theirs.recv(&mut [0; 8]).is_err(), "nothing came");
    let broken = python(Confinement { syscalls: None, ..place.confined() }).await;
    assert!(broken.starts_with("in\nin\nin\nasked\n"), "{broken}");
    assert_eq!(theirs.recv(&mut [0; 8]).unwrap(), 2);
}

/// The network is IPv4 and IPv6, and nothing else that has sockets: not packets, not the kernel's own configuration.
#[tokio::test]
async fn the_network_is_that_of_the_internet() {
    let place = SandboxTestDir::new();
    let with_network = Confinement { syscalls: Some(SyscallRules { network: true }), ..place.confined() };
    let attack = "import socket as s\nfor family in (2, 10, 1, 16, 17, 38, 40):\n  for kind in (s.SOCK_DGRAM, s.SOCK_RAW):\n\
                  \x20   try: s.socket(family, kind, int(kind == s.SOCK_RAW)); print(family)\n    except PermissionError: pass\n    except OSError: print(family, 'absent')";
    let kept = place.run("/usr/bin/python3", &["-I", "-c", attack], with_network).await;
    assert_eq!(kept.output, "2\n10\n", "no raw ones either: {kept:?}");
    let broken = Confinement { syscalls: None, ..place.confined() };
    let broken = place.run("/usr/bin/python3", &["-I", "-c", attack], broken).await;
    assert!(broken.output.lines().any(|line| line == "1"), "{broken:?}");
}

#[tokio::test]
async fn other_ways_into_the_kernel_are_closed() {
    let place = SandboxTestDir::new();
    let numbers = if cfg!(target_arch = "x86_64") {
        [272, 165, 321, 425, 248, 206]
    } else {
        [97, 40, 280, 425, 217, 0]
    };
    let attack = format!(
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         def call(n, *a):\n  libc.syscall(n, *a)\n  return errno.errorcode.get(ctypes.get_errno(), 'fine')\n\
         print(*[call(n, 0, 0, 0, 0, 0) for n in {numbers:?}])\n\
         import os, socket\nsocket.socketpair()\nos.fork()\n\
         print(call({}, 0x10000000 | 17, 0, 0, 0, 0))",
        if cfg!(target_arch = "x86_64") { 56 } else { 220 }
    );
    let kept = place.run("/usr/bin/python3", &["-I", "-c", &attack], place.confined()).await;
    assert!(kept.output.starts_with("EPERM EPERM EPERM EPERM EPERM EPERM\nEPERM\n"), "{kept:?}");
    let broken = place.run("/usr/bin/python3", &["-I", "-c", &attack], Confinement::default()).await;
    assert!(!broken.output.starts_with("EPERM EPERM EPERM EPERM EPERM EPERM\nEPERM\n"), "{broken:?}");
}
