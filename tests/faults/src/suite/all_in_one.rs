//! `mycora up`, reached through links.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use tempfile::TempDir;
use testkit::{FaultProxy, ProxyTarget, SmallDisk, free_port};

use super::{Form, Program, Suite, issue_stranger, place, text};

const SLOTS: usize = 12;
/// Two, so that one can be cut while the other stands.
const DOORS: [&str; 2] = ["client-1", "client-2"];

pub(super) async fn start(dir: TempDir, disk: Option<SmallDisk>) -> Suite {
    let data = place(&dir, disk.as_ref()).join("data");
    let port = ports();
    let (slots, number) = (SLOTS.to_string(), port.to_string());
    let arguments = [
        "up",
        "--data",
        text(&data),
        "--port",
        &number,
        "--slots",
        &slots,
        "--allow-write",
        text(dir.path()),
    ];
    let arguments = arguments.map(str::to_owned).to_vec();
    let mut up = Program::start("up", "mycora", arguments, Vec::new());
    up.wait_for_line("mycora is ready");
    issue_stranger(&data.join("pki"));
    let mut suite = Suite {
        form: Form::AllInOne,
        programs: [("up".to_owned(), up)].into(),
        links: [].into(),
        redis: None,
        leases: Vec::new(),
        shares: Vec::new(),
        doors: Vec::new(),
        data,
        slots: SLOTS,
        disk,
        dir,
    };
    for door in DOORS {
        let proxy = FaultProxy::start(ProxyTarget::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))).await;
        suite.doors.push(format!("https://{}", proxy.address()));
        suite.links.insert(door.to_owned(), proxy);
    }
    suite
}

/// A port that is free together with the operators', 100 above.
fn ports() -> u16 {
    let is_free = |port: &u16| {
        port.checked_add(100).is_some_and(|ops| TcpListener::bind((Ipv4Addr::LOCALHOST, ops)).is_ok())
    };
    (0..100).map(|_| free_port()).find(is_free).expect("two free ports, 100 apart")
}
