//! What an init withstands, and that it ends what does not want to end.

#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect has failed")]
#[path = "it/setup.rs"]
#[expect(dead_code, reason = "shared")]
mod setup;
use sandbox::{Cgroups, Confinement, Event, Limits, Order, processes};
use setup::{Place, end_of, launcher};
use std::time::Instant;
use testkit::{PATIENCE, wait_until};

async fn started(child: &mut sandbox::Child) -> u32 {
    loop {
        match child.next().await.unwrap() {
            Some(Event::Started { pid }) => return pid,
            Some(o) => panic!("{o:?}"),
            None => panic!("gone"),
        }
    }
}

#[tokio::test]
async fn signals_do_not_end_the_init() {
    let place = Place::new();
    let (mut child, out) = place.start("/bin/sleep", &["600"], Confinement::default());
    started(&mut child).await;
    let init = rustix::process::Pid::from_raw(child.pid() as i32).unwrap();
    println!("pgid {:?} ours {:?}", rustix::process::getpgid(Some(init)), rustix::process::getpgrp());
    use rustix::process::Signal;
    for s in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
        rustix::process::kill_process(init, s).unwrap();
    }
    child.order(Order::Kill).await.unwrap();
    let o = end_of(child, out).await;
    println!("{o:?}");
    assert_eq!(o.signal, Some(9));
}

#[tokio::test]
async fn a_fork_bomb_is_ended_in_a_group() {
    let place = Place::new();
    let groups = Cgroups::make(&format!("mycora-test-{}-hb", std::process::id())).unwrap();
    let slot = groups.slot("one").unwrap();
    slot.set_limits(512 << 20, 200).unwrap();
    let attack =
        "import os\nopen('up','w').write('x')\nwhile True:\n  try: os.fork()\n  except OSError: pass";
    let (child, out) = place.start(
        "/usr/bin/python3",
        &["-I", "-S", "-c", attack],
        Confinement { cgroups: slot.dirs().cloned().collect(), ..place.confined() },
    );
    wait_until(|| async { sandbox_members(&slot).then_some(()) }, PATIENCE, "full").await;
    let t = Instant::now();
    child.order(Order::Kill).await.unwrap();
    let o = tokio::time::timeout(PATIENCE, end_of(child, out)).await;
    println!("group: {:?} {:?}", t.elapsed(), o.map(|o| o.ended.len()));
    println!("left: {:?}", slot.kill_all().unwrap().len());
}
fn sandbox_members(slot: &sandbox::Slot) -> bool {
    slot.dirs().any(|d| std::fs::read_to_string(d.join("cgroup.procs")).unwrap().lines().count() >= 195)
}

#[tokio::test]
async fn a_fork_bomb_is_ended_of_a_user() {
    let place = Place::new();
    let attack = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass";
    let limits = Limits { processes: Some(200), ..Limits::default() };
    let (mut child, out) = place.start(
        "/usr/bin/python3",
        &["-I", "-S", "-c", attack],
        Confinement { limits, owner: Some(1_900_000_555), ..Confinement::default() },
    );
    started(&mut child).await;
    let init = child.pid();
    wait_until(
        || async move { (processes::below(init).unwrap().len() > 190).then_some(()) },
        PATIENCE,
        "full",
    )
    .await;
    let t = Instant::now();
    child.order(Order::Kill).await.unwrap();
    let o = tokio::time::timeout(PATIENCE, end_of(child, out)).await;
    println!("user: {:?} {:?}", t.elapsed(), o.map(|o| o.ended.len()));
}

#[tokio::test]
async fn init_killed_takes_the_script_along() {
    let place = Place::new();
    let (mut child, _out) =
        place.start("/bin/sleep", &["600"], Confinement { owner: Some(1_900_000_556), ..place.confined() });
    let pid = started(&mut child).await;
    assert!(processes::kill(processes::observe(child.pid()).unwrap()));
    wait_until(|| async { processes::observe(pid).is_err().then_some(()) }, PATIENCE, "it is gone").await;
    assert_eq!(child.next().await.unwrap(), None);
}

#[tokio::test]
async fn user_at_its_limit() {
    let place = Place::new();
    let limits = Limits { processes: Some(5), ..Limits::default() };
    let c = || Confinement { limits, owner: Some(1_900_000_557), ..Confinement::default() };
    let mut all = vec![];
    for _ in 0..7 {
        let (mut child, out) = place.start("/bin/sleep", &["600"], c());
        println!("{:?}", child.next().await.unwrap());
        all.push((child, out));
    }
}

#[tokio::test]
async fn foreign_numbers() {
    let place = Place::new();
    for code in ["b814000000cd80c3", "b8270000400f05c3"] {
        let attack = format!(
            "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('{code}'))\n\
          f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\nprint(f() != 0)"
        );
        let kept = place.python(&attack, place.confined()).await;
        println!("{kept:?}");
        let kept = place.python(&attack, Confinement { syscalls: None, ..place.confined() }).await;
        println!("{kept:?}");
    }
}

#[tokio::test]
async fn init_is_not_read() {
    let place = Place::new();
    let o = place
        .shell("cat /proc/$PPID/environ; cat /proc/$PPID/mem; ls -l /proc/$PPID/fd", Confinement::default())
        .await;
    println!("{o:?}");
}

#[tokio::test]
async fn times() {
    let place = Place::new();
    let groups = Cgroups::make(&format!("mycora-test-{}-t", std::process::id())).unwrap();
    let slot = groups.slot("one").unwrap();
    slot.set_limits(512 << 20, 200).unwrap();
    let n = 200;
    let owner = Some(1_900_000_558);
    let cg: Vec<_> = slot.dirs().cloned().collect();
    for (name, c) in [
        ("basic", Confinement::default()),
        ("files", Confinement { syscalls: None, ..place.confined() }),
        ("syscalls", Confinement { files: None, ..place.confined() }),
        ("owner", Confinement { owner, ..Confinement::default() }),
        ("cgroup", Confinement { cgroups: cg.clone(), ..Confinement::default() }),
        ("all", Confinement { cgroups: cg.clone(), owner, ..place.confined() }),
    ] {
        let mut v = vec![];
        for _ in 0..n {
            let t = Instant::now();
            let o = place.run("/bin/true", &[], c.clone()).await;
            assert_eq!(o.code, Some(0), "{o:?}");
            v.push(t.elapsed());
        }
        v.sort();
        println!("{name}: p50 {:?} p95 {:?}", v[n / 2], v[n * 95 / 100]);
    }
    let mut v = vec![];
    for _ in 0..n {
        let t = Instant::now();
        let s = tokio::process::Command::new("/bin/true")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .await
            .unwrap();
        assert!(s.status.success());
        v.push(t.elapsed());
    }
    v.sort();
    println!("plain: p50 {:?} p95 {:?}", v[n / 2], v[n * 95 / 100]);
    let _ = launcher();
}
