//! The system functions of sal jobs.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use model::execution::Outcome as Kind;
use model::{Execution, Grants, ScriptType};
use runner::RunnerSettings;

use crate::setup::{AttemptTestOutcome, RunnerTestBench, job};

async fn bench() -> RunnerTestBench {
    RunnerTestBench::with(|settings| RunnerSettings { types: vec![ScriptType::Sal], ..settings }).await
}

fn sal(script: &str) -> Execution {
    job(ScriptType::Sal, script)
}

async fn run(bench: &mut RunnerTestBench, script: &str) -> AttemptTestOutcome {
    let outcome = bench.run(sal(script)).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{script}: {outcome:?}");
    outcome
}

#[tokio::test]
async fn files_are_made_and_found_inside() {
    let mut bench = bench().await;
    let script = r#"
        make_dir("a/b"); make_dir("a/b");
        write_file("a/b/one", "1"); append_file("a/b/one", "2"); append_file("two", "x");
        copy("a/b/one", "a/three"); copy("two", "a/three");
        result("list", list_dir("a"));
        result("read", read_file("a/b/one") + read_file("a/three"));
        result("size", file_size("a/b/one"));
        result("there", [exists("two"), exists("a"), exists("x"), exists("two/x")]);
        result("removed", [remove("a/b"), remove("a/b"), remove("two"), exists("a/b/one")]);
    "#;
    let outcome = run(&mut bench, script).await;
    for (key, expected) in [
        ("list", r#"["b/","three"]"#),
        ("read", "12x"),
        ("size", "2"),
        ("there", "[true,true,false,false]"),
        ("removed", "[true,false,true,false]"),
    ] {
        assert_eq!(outcome.result(key), expected, "{key}");
    }
}

#[tokio::test]
async fn no_way_leads_out() {
    let mut bench = bench().await;
    let links = r#"run("ln", ["-s", "/etc", "out"]); run("ln", ["-s", "/etc/passwd", "link"]);
                   run("mkfifo", ["pipe"]); write_file("file", "x"); "#;
    for (call, part) in [
        (r#"read_file("/etc/passwd")"#, "leads out"),
        (r#"append_file("../x", "y")"#, "leads out"),
        (r#"read_file("link")"#, "symbolic link"),
        (r#"append_file("link", "y")"#, "symbolic link"),
        (r#"append_file("pipe", "y")"#, "append_file"),
        (r#"list_dir("out")"#, "symbolic link"),
        (r#"list_dir("..")"#, "leads out"),
        (r#"file_size("out/passwd")"#, "symbolic link"),
        (r#"exists("/etc/passwd")"#, "leads out"),
        (r#"exists("out/passwd")"#, "symbolic link"),
        (r#"remove("out/passwd")"#, "symbolic link"),
        (r#"remove("..")"#, "names nothing"),
        (r#"copy("link", "x")"#, "symbolic link"),
        (r#"copy("file", "out/x")"#, "symbolic link"),
        (r#"copy("file", "file")"#, "the same file"),
        (r#"make_dir("out/x")"#, "symbolic link"),
        (r#"make_dir("/tmp/x")"#, ""),
        (r#"run("true", [], #{ cwd: "out" })"#, "symbolic link"),
        (r#"run("true", [], #{ cwd: "/" })"#, "leads out"),
    ] {
        let outcome = bench.run(sal(&format!("{links}{call}"))).await;
        assert_eq!(outcome.end.exit_code, Some(1), "{call}: {outcome:?}");
        assert!(outcome.log.contains(part), "{call}: {}", outcome.log);
    }
    let script = format!("{links}result(\"left\", [remove(\"out\"), exists(\"out\"), remove(\"link\")]);");
    assert_eq!(run(&mut bench, &script).await.result("left"), "[true,false,true]");
    assert!(std::path::Path::new("/etc/passwd").exists());
}

#[tokio::test]
async fn a_directory_has_a_bound() {
    let mut bench = bench().await;
    let grants = Grants { disk_bytes: 4 << 20, ..Grants::default() };
    let script = r#"let s = ""; s.pad(1_000_000, 'x'); for n in 0..10 { write_file(`f${n}`, s); }"#;
    let key = bench.accept_with(sal(script), grants).await;
    let outcome = bench.end_of(key).await;
    assert!(outcome.log.contains("may hold 4194304 bytes"), "{outcome:?}");
}

#[tokio::test]
async fn programs_run_like_scripts() {
    let mut bench = bench().await;
    let mut execution = sal(r#"
        make_dir("d");
        write_file("d/in", "inside");
        let ran = run("sh", ["-c", "echo \"$1 $WORD $MORE $MYCORA_JOB\"; cat in - >&2; exit 7", "sh", 5],
                      #{ cwd: "d", stdin: " and read", env: #{ MORE: "m" }, timeout: 60 });
        result("code", ran.code); result("out", ran.out); result("err", ran.err); result("cut", ran.cut);
        result("signal", run("sh", ["-c", "kill -9 $$"]).code);
        let much = run("sh", ["-c", "head -c 5000000 /dev/zero"]);
        result("much", [much.out.len(), much.cut]);
        try { run("sleep", ["600"], #{ timeout: 0.1 }); } catch (why) { result("late", why); }
        try { run("no-such-program"); } catch (why) { result("none", why); }
        try { run("sh", [], #{ shell: true }); } catch (why) { result("option", why); }
        result("env", [env("WORD"), env("MYCORA_FLOW"), env("HOME")]);
        result("names", run("sh", ["-c", "env | cut -d= -f1 | sort | tr '\\n' ' '"]).out);
        "#);
    execution.env_vars.insert("WORD".into(), "w".into());
    let outcome = bench.run(execution).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
    for (key, expected) in [
        ("code", "7"),
        ("out", "5 w m 3\n"),
        ("err", "inside and read"),
        ("cut", "false"),
        ("signal", "137"),
        ("much", "[4194304,true]"),
        ("late", "run(\"sleep\"): it ran longer than 0.1 s"),
        ("none", "run(\"no-such-program\"): there is no such program"),
        ("env", r#"["w","7",null]"#),
        ("names", "HOME MYCORA_ATTEMPT MYCORA_CONTEXT MYCORA_FLOW MYCORA_JOB PATH PWD TMPDIR WORD "),
    ] {
        assert_eq!(outcome.result(key), expected, "{key}");
    }
    assert!(outcome.result("option").contains("`shell` is none of"), "{outcome:?}");
    assert_eq!(outcome.log, "", "what programs print is the script's to tell");
}

#[tokio::test]
async fn programs_end_with_the_job() {
    let mut bench = bench().await;
    let pids = bench.seen().join("pids");
    let program = format!(
        "trap '' TERM; echo $$ >> {0}; (sh -c 'echo $$ >> {0}; exec sleep 600' &) ; \
         setsid sh -c 'echo $$ >> {0}; exec sleep 600' & while [ $(wc -l < {0}) -lt 3 ]; do :; done; touch {0}.all; sleep 600",
        pids.display()
    );
    let mut execution = sal("run(\"sh\", [\"-c\", env(\"PROGRAM\")]);");
    execution.env_vars.insert("PROGRAM".into(), program);
    let key = bench.accept(execution).await;
    let all = pids.with_extension("all");
    let ready = || async { all.exists().then_some(()) };
    testkit::wait_until(ready, testkit::PATIENCE, "all three run").await;
    bench.supervisor.stop(key, 0).await.expect("an answer");
    assert_eq!(bench.end_of(key).await.end.outcome, Kind::Stopped);
    let pids = std::fs::read_to_string(pids).expect("they wrote them");
    assert_eq!(pids.lines().count(), 3);
    let lives = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    };
    assert!(!pids.lines().any(lives), "{pids}");
}

/// A small server: each path answers in its own way. It keeps what it was asked.
struct ScriptTestServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptTestServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let keeps = Arc::clone(&requests);
        std::thread::spawn(move || {
            // Never closed: a request that is not answered.
            let mut open = Vec::new();
            for stream in listener.incoming().flatten() {
                if let Some(stream) = answer(stream, address, &keeps) {
                    open.push(stream);
                }
            }
        });
        Self { address, requests }
    }

    fn requests(&self) -> String {
        self.requests.lock().expect("nobody panicked").join("\n")
    }
}

fn answer(mut stream: TcpStream, own: SocketAddr, requests: &Mutex<Vec<String>>) -> Option<TcpStream> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).ok()? == 1 {
        request.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&request).to_ascii_lowercase();
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    let mut body = vec![0; len.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    requests.lock().ok()?.push(format!("{head}{body}"));
    let port = own.port();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let (status, extra, body) = match path {
        "/slow" => return Some(stream),
        "/away" => ("302 Found", format!("Location: http://localhost:{port}/hello\r\n"), String::new()),
        "/here" => ("303 See Other", "Location: hello\r\n".to_owned(), String::new()),
        "/round" => ("302 Found", "Location: /round\r\n".to_owned(), String::new()),
        "/big" => ("200 OK", String::new(), "x".repeat(17 << 20)),
        "/bad" => ("418 Teapot", "X-A: 1\r\nX-A: 2\r\n".to_owned(), "no".to_owned()),
        _ => ("200 OK", String::new(), format!("hello {body}")),
    };
    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{extra}\r\n{body}", body.len());
    None
}

async fn ask(bench: &mut RunnerTestBench, hosts: &[&str], script: &str) -> AttemptTestOutcome {
    let mut execution = sal(script);
    execution.network = true;
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    let key = bench.accept_with(execution, Grants { hosts, ..Grants::default() }).await;
    bench.end_of(key).await
}

#[tokio::test]
async fn allowed_hosts_answer() {
    let mut bench = bench().await;
    let server = ScriptTestServer::start();
    let base = format!("http://{}", server.address);
    let script = format!(
        r#"
        let got = http_get("{base}/hello?q=1");
        result("got", [got.status, got.body, got.headers["content-length"]]);
        let post = http_post("{base}/", #{{ a: 1 }});
        result("post", post.body);
        result("text", http_post("{base}/", "plain").body);
        let all = http(#{{ method: "put", url: "{base}/bad", headers: #{{ "X-B": "b" }}, body: "up", timeout: 20 }});
        result("all", [all.status, all.headers["x-a"], all.body]);
        result("here", http_post("{base}/here", "x").body);
        "#
    );
    let outcome = ask(&mut bench, &["127.0.0.1"], &script).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
    for (key, expected) in [
        ("got", r#"[200,"hello ","6"]"#),
        ("post", r#"hello {"a":1}"#),
        ("text", "hello plain"),
        ("all", r#"[418,"1, 2","no"]"#),
        ("here", "hello "),
    ] {
        assert_eq!(outcome.result(key), expected, "{key}");
    }
    let requests = server.requests();
    for part in
        ["get /hello?q=1 http/1.1", "content-type: application/json", "put /bad", "x-b: b", "get /hello "]
    {
        assert!(requests.contains(part), "{part}: {requests}");
    }
}

#[tokio::test]
async fn other_hosts_are_refused() {
    let mut bench = bench().await;
    let server = ScriptTestServer::start();
    let port = server.address.port();
    let get = |host: &str, path: &str| format!("http_get(\"http://{host}:{port}{path}\")");
    let own_port = format!("127.0.0.1:{port}");
    for (hosts, call, part) in [
        (&[][..], get("127.0.0.1", "/"), "not among those"),
        (&["example.com"], get("127.0.0.1", "/"), "not among those"),
        (&["127.0.0.1:1"], get("127.0.0.1", "/"), "not among those"),
        // Names, and everything, are not the networks behind this machine.
        (&["*"], get("127.0.0.1", "/"), "no address that may be reached"),
        (&["localhost"], get("localhost", "/"), "no address that may be reached"),
        (&["*"], get("[::ffff:127.0.0.1]", "/"), "no address that may be reached"),
        (&["*"], get("169.254.169.254", "/"), "no address that may be reached"),
        // Other ways to write the same.
        (&["*"], get("2130706433", "/"), "no address that may be reached"),
        (&["*"], get("0x7f.1", "/"), "no address that may be reached"),
        (&["*"], get("0177.0.0.1", "/"), "no address that may be reached"),
        (&["*"], get("0", "/"), "no address that may be reached"),
        (&["*"], get("[::ffff:7f00:1]", "/"), "no address that may be reached"),
        (&["*"], get("LocalHost", "/"), "no address that may be reached"),
        (&["example.com"], get("example.com@127.0.0.1", "/"), "not in the URL"),
        (&["example.com"], get("example.com.127.0.0.1", "/"), "not among those"),
        (&[&own_port], get("127.0.0.1", "/away"), "the host localhost is not among those"),
        (&[&own_port], get("127.0.0.1", "/round"), "more than 10 redirections"),
        (&[&own_port], get("127.0.0.1", "/big"), "more than 16777216 bytes"),
        (&[&own_port], get("user@127.0.0.1", "/"), "not in the URL"),
        (&["*"], "http_get(\"ftp://127.0.0.1/x\")".to_owned(), "neither http nor https"),
        (&["*"], "http_get(\"file:///etc/passwd\")".to_owned(), "no URL"),
        (&["*"], "http_get(\"not a url\")".to_owned(), "no URL"),
        (&["*"], "http(#{ url: \"http://x\", headers: #{ Host: \"y\" } })".to_owned(), "not for scripts"),
        (&[&own_port], format!("http(#{{ url: \"http://{own_port}/slow\", timeout: 0.2 }})"), "within 0.2 s"),
    ] {
        let outcome = ask(&mut bench, hosts, &call).await;
        assert_eq!(outcome.end.exit_code, Some(1), "{call}: {outcome:?}");
        assert!(outcome.log.contains(part), "{call}: {}", outcome.log);
    }
    let outcome = ask(&mut bench, &["localhost", "127.0.0.1"], &get("localhost", "/hello")).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");

    let execution = sal(&get("127.0.0.1", "/"));
    let grants = Grants { hosts: vec!["127.0.0.1".to_owned()], ..Grants::default() };
    let key = bench.accept_with(execution, grants).await;
    let outcome = bench.end_of(key).await;
    assert!(outcome.log.contains("did not ask for the network"), "{outcome:?}");
}

#[tokio::test]
async fn a_request_ends_with_the_job() {
    let mut bench = bench().await;
    let server = ScriptTestServer::start();
    let mut execution = sal(&format!("print(\"ready\"); http_get(\"http://{}/slow\");", server.address));
    execution.network = true;
    let grants = Grants { hosts: vec!["127.0.0.1".to_owned()], ..Grants::default() };
    let key = bench.accept_with(execution.clone(), grants.clone()).await;
    bench.printed(key, "ready").await;
    bench.supervisor.stop(key, 0).await.expect("an answer");
    let outcome = tokio::time::timeout(testkit::PATIENCE, bench.end_of(key)).await.expect("an end in time");
    assert_eq!(outcome.end.outcome, Kind::Stopped);
    execution.timeout_secs = 1;
    execution.job_key.flow = model::FlowUid::random();
    let key = bench.accept_with(execution, grants).await;
    assert_eq!(bench.end_of(key).await.end.outcome, Kind::TimedOut);
}
