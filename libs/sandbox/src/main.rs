//! The launcher alone, for tests of this crate.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use sandbox::Builtin;

/// Builtins that tests run without executing a program.
const BUILTINS: &[Builtin] =
    &[Builtin { name: "look-around", run: look_around }, Builtin { name: "panics", run: panics }];

fn main() {
    sandbox::launch_if_asked(BUILTINS);
    eprintln!("this program only starts what a runner asks it to start");
    std::process::exit(2);
}

/// Reports what a builtin reaches.
fn look_around() -> i32 {
    let read = std::io::stdin().read(&mut [0; 1]).map_err(|error| error.kind());
    // SAFETY: asks for the flags of a descriptor, and touches no memory.
    let open: Vec<_> =
        (0..1024).filter(|number| unsafe { libc::fcntl(*number, libc::F_GETFD) } >= 0).collect();
    let opened: Vec<_> =
        ["/dev/null", "/etc/passwd", "/usr", "/proc/self/stat"].map(|path| File::open(path).is_ok()).into();
    let listens = TcpListener::bind("127.0.0.1:0").is_ok();
    let report = format!("read {read:?} open {open:?} opened {opened:?} listens {listens}\n");
    i32::from(std::io::stdout().write_all(report.as_bytes()).is_err())
}

fn panics() -> i32 {
    panic!("a builtin that panics")
}
