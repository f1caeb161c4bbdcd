//! Calls that the init makes in a job's place: connections, forks, changes of file attributes.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt as _;

use model::execution::Outcome as Kind;
use model::{Execution, Grants, Isolation, ReasonCode, ScriptType};
use runner::RunnerSettings;
use sandbox::IsolationLayers;

use crate::setup::{AttemptTestOutcome, RunnerTestBench, job, seen};

async fn bench(warm: bool, layers: IsolationLayers) -> RunnerTestBench {
    RunnerTestBench::with(|mut settings| {
        settings.scripts.warm = warm;
        let types = vec![ScriptType::Python, ScriptType::Shell, ScriptType::Sal];
        RunnerSettings { types, layers, ..settings }
    })
    .await
}

async fn run(bench: &mut RunnerTestBench, execution: Execution, grants: Grants) -> AttemptTestOutcome {
    let key = bench.accept_with(execution, grants).await;
    bench.end_of(key).await
}

/// Connects and sends; prints what got through.
const REACH: &str = "import socket\n\
    for address in ('127.0.0.1', '0.0.0.0', '::1', '::ffff:127.0.0.1', '169.254.169.254'):\n\
    \x20 family = socket.AF_INET6 if ':' in address else socket.AF_INET\n\
    \x20 for kind, port in ((socket.SOCK_STREAM, TCP), (socket.SOCK_DGRAM, UDP)):\n\
    \x20   s = socket.socket(family, kind); s.settimeout(3)\n\
    \x20   try: s.connect((address, port)); s.send(b'x'); print('in', address, kind == socket.SOCK_STREAM)\n\
    \x20   except PermissionError: pass\n\
    \x20   except OSError as error: print(error)\n\
    print('tried')\n";

#[tokio::test]
async fn a_job_with_the_network_reaches_this_machine_only_where_that_is_listed() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    udp.set_nonblocking(true).expect("a socket");
    tcp.set_nonblocking(true).expect("a socket");
    let [port, datagrams] =
        [tcp.local_addr(), udp.local_addr()].map(|address| address.expect("an address").port());
    let reach = REACH.replace("TCP", &port.to_string()).replace("UDP", &datagrams.to_string());
    let jobs = [
        job(ScriptType::Python, &reach),
        job(ScriptType::Shell, &format!("python3 - <<'END'\n{reach}END\n")),
        job(ScriptType::Sal, &format!("print(run(\"python3\", [\"-c\", {reach:?}]).out);")),
    ];
    for warm in [true, false] {
        let mut bench = bench(warm, IsolationLayers::default()).await;
        for execution in &jobs {
            let execution = Execution { network: true, ..fresh(execution) };
            let kept = run(&mut bench, execution.clone(), Grants::default()).await;
            assert_eq!(kept.log.trim(), "tried", "{kept:?}");
            // A policy that changed counts for the next job, also where an interpreter is warm.
            let addresses = vec![format!("127.0.0.1:{port}").parse().expect("a range")];
            let listed = run(&mut bench, fresh(&execution), Grants { addresses, ..Grants::default() }).await;
            assert_eq!(listed.log.trim(), "in 127.0.0.1 True\nin ::ffff:127.0.0.1 True\ntried", "{listed:?}");
            while tcp.accept().is_ok() {}
        }
    }
    assert!(udp.recv(&mut [0; 8]).is_err(), "nothing came");
}

fn fresh(execution: &Execution) -> Execution {
    let mut execution = execution.clone();
    execution.job_key.flow = model::FlowUid::random();
    execution
}

#[tokio::test]
async fn a_job_that_demands_to_be_confined_has_no_network_where_nothing_keeps_it() {
    let mut bench = bench(true, IsolationLayers { broker: false, ..IsolationLayers::default() }).await;
    assert!(bench.runner.isolation_support().missing.iter().any(|missing| missing.layer == "network"));
    let execution = Execution { network: true, ..job(ScriptType::Python, "print('runs')") };
    let basic = run(&mut bench, execution.clone(), Grants::default()).await;
    assert_eq!(basic.log, "runs\n", "{basic:?}");
    let demanding = Execution { isolation: Isolation::Confined, ..fresh(&execution) };
    for (execution, isolation) in
        [(demanding.clone(), Isolation::Basic), (fresh(&execution), Isolation::Confined)]
    {
        let refused = run(&mut bench, execution, Grants { isolation, ..Grants::default() }).await;
        let code = refused.end.reason.as_ref().map(|reason| reason.code);
        assert_eq!(code, Some(ReasonCode::IsolationUnavailable), "{refused:?}");
    }
    let without = Execution { network: false, ..fresh(&demanding) };
    assert_eq!(run(&mut bench, without, Grants::default()).await.end.outcome, Kind::Succeeded);
}

/// The broker keeps other contexts out when the runner's user is the scripts' as well.
#[tokio::test]
async fn a_job_of_the_runners_own_user_changes_no_mode_outside() {
    for warm in [true, false] {
        let layers = IsolationLayers { owner: false, ..IsolationLayers::default() };
        let mut bench = bench(warm, layers).await;
        assert!(
            bench.runner.isolation_support().level >= Isolation::Confined,
            "{:?}",
            bench.runner.isolation_support()
        );
        let secret = bench.dir.path().join("secret");
        std::fs::write(&secret, "ours").expect("a file");
        let before = std::fs::metadata(&secret).expect("a file");
        let script = format!(
            "import os\nopen('own', 'w').close(); os.chmod('own', 0o777); os.utime('own', (1, 1)); os.chmod('{seen}', 0o777)\n\
             os.symlink('{secret}', 'link'); fd = os.open('{secret}', os.O_PATH)\n\
             for way in (lambda: os.chmod('{secret}', 0o666), lambda: os.chmod('link', 0o666), lambda: os.utime('{secret}'),\n\
             \x20           lambda: os.chmod('/proc/self/fd/%d' % fd, 0o666), lambda: os.chown('{secret}', -1, os.getgid())):\n\
             \x20 try: way(); print('changed')\n  except PermissionError: pass\nprint('tried')",
            secret = secret.display(),
            seen = seen(bench.dir.path()).display(),
        );
        let kept = run(&mut bench, job(ScriptType::Python, &script), Grants::default()).await;
        assert_eq!(kept.log, "tried\n", "{kept:?}");
        let after = std::fs::metadata(&secret).expect("a file");
        assert_eq!(
            (before.mode(), before.ctime(), before.ctime_nsec()),
            (after.mode(), after.ctime(), after.ctime_nsec())
        );
    }
}

/// Jobs of one context are of one user, and each has as many processes as the policy gives to a job.
#[tokio::test]
async fn the_bound_on_processes_is_each_jobs_own() {
    let all = IsolationLayers::default();
    for layers in [
        all,
        IsolationLayers { cgroup: false, ..all },
        IsolationLayers { cgroup: false, owner: false, ..all },
    ] {
        let mut bench = bench(true, layers).await;
        let meeting = seen(bench.dir.path());
        let grants = Grants { processes: 24, ..Grants::default() };
        let script = |own: &str, other: &str| {
            format!(
                "import os, signal, sys, time\nn = 0\nwhile n < 60:\n  try: pid = os.fork()\n  except BlockingIOError: break\n\
                 \x20 if pid == 0: signal.pause()\n  n += 1\n\
                 open('{at}/{own}', 'w').close()\n\
                 while not os.path.exists('{at}/{other}'): time.sleep(0.01)\nprint(n)",
                at = meeting.display()
            )
        };
        let keys = [
            bench.accept_with(job(ScriptType::Python, &script("a", "b")), grants.clone()).await,
            bench
                .accept_with(
                    job(ScriptType::Shell, &format!("exec python3 - <<'END'\n{}\nEND\n", script("b", "a"))),
                    grants,
                )
                .await,
        ];
        let mut logs = std::collections::BTreeMap::new();
        while logs.len() < keys.len() || logs.values().any(|(_, ended)| !ended) {
            for event in bench.reader.next(std::future::pending()).await.expect("events") {
                let (log, ended): &mut (String, bool) = logs.entry(event.job_key).or_default();
                match event.kind {
                    queue::QueueEventKind::Log(piece) => log.push_str(&piece.text),
                    queue::QueueEventKind::Ended(_) => *ended = true,
                    _ => {}
                }
            }
        }
        // A warm interpreter's init is in the group of its job.
        let least = if bench.runner.isolation_support().cgroup { 22 } else { 23 };
        for key in keys {
            let count: u32 = logs[&key].0.trim().parse().expect("a number");
            assert!((least..=23).contains(&count), "{layers:?}: {logs:?}");
        }
    }
}
