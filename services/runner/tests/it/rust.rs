//! Compiled scripts.

use std::path::PathBuf;

use model::execution::{FileSource, Outcome as Kind};
use model::job::BlobRef;
use model::{BlobHash, ReasonCode, ScriptType};
use runner::RunnerSettings;
use sandbox::IsolationLayers;

use crate::setup::{RunnerTestBench, context, job};

/// A runner for rust alone, unless there is no compiler.
async fn bench() -> Option<RunnerTestBench> {
    // A compiler may be where only its owner gets to.
    let bench = RunnerTestBench::with(|settings| RunnerSettings {
        layers: IsolationLayers { owner: false, ..settings.layers },
        ..settings
    })
    .await;
    let is_there = bench.runner.instances().iter().any(|instance| instance.script_type == ScriptType::Rust);
    let has_compiler = std::process::Command::new("rustc").arg("-V").output().is_ok();
    assert_eq!(is_there, has_compiler, "what builds this can run it");
    is_there.then_some(bench)
}

/// Returns the context's cached programs, each with its inode number.
fn kept(bench: &RunnerTestBench) -> Vec<(PathBuf, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let cache = bench.work().join("contexts").join(context().to_string()).join("cache");
    let entries =
        std::fs::read_dir(cache).map(|entries| entries.flatten().collect()).unwrap_or_else(|_| Vec::new());
    entries.iter().map(|entry| (entry.path(), entry.metadata().expect("a file").ino())).collect()
}

#[tokio::test]
async fn a_script_is_compiled_once() {
    let Some(mut bench) = bench().await else { return };
    let script = "fn main() { println!(\"{:?}\", std::env::var(\"N\")); }";
    let mut inode = None;
    for n in ["1", "2"] {
        let mut execution = job(ScriptType::Rust, script);
        execution.env_vars.insert("N".into(), n.into());
        let outcome = bench.run(execution).await;
        assert_eq!(outcome.log, format!("Ok(\"{n}\")\n"), "{outcome:?}");
        let kept = kept(&bench);
        assert_eq!(kept.len(), 1);
        assert_eq!(
            *inode.get_or_insert(kept[0].1),
            kept[0].1,
            "it is the same file: nothing was compiled again"
        );
    }
    // A witness that the second did not compile: a program that is there is run, whatever it is.
    let (path, _) = kept(&bench).remove(0);
    std::fs::copy("/bin/true", path.with_extension("part")).expect("a copy");
    std::fs::rename(path.with_extension("part"), &path).expect("in its place");
    let outcome = bench.run(job(ScriptType::Rust, script)).await;
    assert_eq!((outcome.end.outcome, outcome.log.as_str()), (Kind::Succeeded, ""), "{outcome:?}");

    let mut other = job(ScriptType::Rust, script);
    other.job_key.context = model::ContextUid(model::id::Uid::from_bits(2));
    other.env_vars.insert("N".into(), "3".into());
    assert_eq!(bench.run(other).await.log, "Ok(\"3\")\n", "another context has its own");
}

#[tokio::test]
async fn a_script_that_does_not_compile_is_reported_with_its_error() {
    let Some(mut bench) = bench().await else { return };
    let outcome = bench.run(job(ScriptType::Rust, "fn main() {\n    let x: u8 = \"no\";\n}")).await;
    assert_eq!((outcome.end.outcome, outcome.end.exit_code), (Kind::Failed, Some(1)));
    assert_eq!(outcome.end.reason.as_ref().map(|reason| reason.code), Some(ReasonCode::ExitCode));
    assert!(outcome.reason().contains("did not compile"), "{}", outcome.reason());
    assert!(outcome.log.contains("script.rs:2:17"), "{}", outcome.log);
    assert_eq!(kept(&bench), []);
}

#[tokio::test]
async fn a_script_names_its_edition() {
    let Some(mut bench) = bench().await else { return };
    let script = "fn main() { let gen = 1; println!(\"{gen}\"); }";
    for edition in ["2015", "2018", "2021"] {
        let outcome = bench.run(job(ScriptType::Rust, &format!("// edition: {edition}\n{script}"))).await;
        assert_eq!(outcome.log, "1\n", "{edition}: {outcome:?}");
    }
    let outcome = bench.run(job(ScriptType::Rust, script)).await;
    assert!(outcome.reason().contains("did not compile"), "a keyword of 2024: {outcome:?}");
    assert!(outcome.reason().contains(", edition 20"), "{}", outcome.reason());
    let outcome = bench.run(job(ScriptType::Rust, &format!("// edition: 1999\n{script}"))).await;
    assert!(outcome.reason().contains("the script names edition `1999`"), "{}", outcome.reason());
}

#[tokio::test]
async fn the_same_script_twice_at_once_is_compiled_whole() {
    let Some(mut bench) = bench().await else { return };
    for _ in 0..4 {
        bench.accept(job(ScriptType::Rust, "fn main() { println!(\"fine\"); }")).await;
    }
    let (mut ends, mut log) = (0, String::new());
    while ends < 4 {
        let events = bench.reader.next(std::future::pending()).await.expect("events");
        for event in &events {
            match &event.kind {
                queue::QueueEventKind::Ended(end) => {
                    assert_eq!(end.outcome, Kind::Succeeded, "{end:?}");
                    ends += 1;
                }
                queue::QueueEventKind::Log(piece) => log.push_str(&piece.text),
                _ => {}
            }
        }
        bench.reader.acknowledge(&events).await.expect("acknowledged");
    }
    assert_eq!(log, "fine\n".repeat(4));
    assert_eq!(kept(&bench).len(), 1);
}

#[tokio::test]
async fn a_script_with_more_than_itself_is_not_kept() {
    let Some(mut bench) = bench().await else { return };
    for (text, script) in [
        ("one", "fn main() { println!(include_str!(\"../data.txt\")); }"),
        ("two", "fn main() { println!(include_str!(\"../data.txt\")); }"),
        ("two", "fn main() { println!(\"{}\", option_env!(\"HOME\").map_or(\"none\", |_| \"two\")); }"),
    ] {
        let mut execution = job(ScriptType::Rust, script);
        let blob = BlobRef { sha256: BlobHash::of(text.as_bytes()), size: 3 };
        let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
        execution.files.insert("data.txt".into(), FileSource { blob, inline: Some(encoded) });
        let outcome = bench.run(execution).await;
        assert_eq!(outcome.log, format!("{text}\n"), "{outcome:?}");
        assert_eq!(kept(&bench), []);
    }
}

/// The linker takes in files that no list of the compiler's names.
#[tokio::test]
async fn a_script_that_is_linked_with_a_file_is_not_kept() {
    let Some(mut bench) = bench().await else { return };
    // From wherever the linker looks for libraries.
    let name = format!("{}proc/self/cwd/data.o", "../".repeat(30));
    let script = format!(
        "#[link(name = \"{name}\", kind = \"static\", modifiers = \"+verbatim\")]\n\
         unsafe extern \"C\" {{ safe fn answer() -> i32; }}\nfn main() {{ println!(\"{{}}\", answer()); }}"
    );
    for answer in [1, 2] {
        let mut execution = job(ScriptType::Rust, &script);
        let library = library(answer);
        let blob = BlobRef { sha256: BlobHash::of(&library), size: library.len() as u64 };
        let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &library);
        execution.files.insert("data.o".into(), FileSource { blob, inline: Some(encoded) });
        let outcome = bench.run(execution).await;
        assert_eq!(outcome.log, format!("{answer}\n"), "{outcome:?}");
        assert_eq!(kept(&bench), []);
    }
}

/// An archive with a function that gives this number.
fn library(answer: i32) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let source = format!("int answer(void) {{ return {answer}; }}\n");
    std::fs::write(dir.path().join("answer.c"), source).expect("a file");
    for (program, args) in [("cc", &["-c", "answer.c"][..]), ("ar", &["rc", "answer.a", "answer.o"])] {
        let status = std::process::Command::new(program).args(args).current_dir(dir.path()).status();
        assert!(status.expect("a program that is there").success(), "{program}");
    }
    std::fs::read(dir.path().join("answer.a")).expect("an archive")
}

#[tokio::test]
async fn a_compiler_sees_no_more_than_a_script() {
    let Some(mut bench) = bench().await else { return };
    let secret = bench.dir.path().join("secret");
    std::fs::write(&secret, "let me not be seen").expect("a file");
    let foreign = bench.work().join("contexts/foreign");
    std::fs::create_dir_all(&foreign).expect("a directory");
    std::fs::write(foreign.join("file"), "let me not be seen").expect("a file");
    let instances = bench.supervisor.instances().await.expect("an answer");
    let has_landlock = |layers: &[String]| layers.iter().any(|layer| layer.starts_with("landlock"));
    let is_confined = instances.iter().all(|(_, presence)| has_landlock(&presence.layers));
    for path in [secret, foreign.join("file")] {
        for script in [
            format!("fn main() {{ print!(include_str!(\"{}\")); }}", path.display()),
            format!(
                "fn main() {{ print!(\"{{}}\", std::fs::read_to_string(\"{}\").unwrap()); }}",
                path.display()
            ),
            format!("mod other {{ #[path = \"{}\"] mod file; }} fn main() {{}}", path.display()),
        ] {
            let outcome = bench.run(job(ScriptType::Rust, &script)).await;
            if is_confined {
                assert_eq!(outcome.end.outcome, Kind::Failed, "{outcome:?}");
                assert!(!outcome.log.contains("not be seen"), "{}", outcome.log);
            }
        }
    }
    // Nor can a script change what another job runs.
    let script = "fn main() { let own = std::env::current_exe().unwrap(); print!(\"{}\", std::fs::write(&own, \"x\").is_ok() \
                  || std::fs::remove_file(&own).is_ok() || std::fs::write(own.with_extension(\"x\"), \"x\").is_ok()); }";
    let outcome = bench.run(job(ScriptType::Rust, script)).await;
    assert!(!is_confined || outcome.log == "false", "{outcome:?}");
}

#[tokio::test]
async fn the_time_limit_covers_compiling() {
    let Some(mut bench) = bench().await else { return };
    // Minutes of work for the compiler.
    let script = "const fn f(n: u64) -> u64 { let mut i = 0u64; let mut x = n; while i < 4_000_000_000 { x = x * 31 % 1_000_003; i += 1; } x }\n\
                  #[allow(long_running_const_eval)] const X: u64 = f(7);\nfn main() { println!(\"{X}\"); }";
    let mut execution = job(ScriptType::Rust, script);
    execution.timeout_secs = 2;
    let outcome = bench.run(execution).await;
    assert_eq!(outcome.end.outcome, Kind::TimedOut, "{outcome:?}");
    assert_eq!(kept(&bench), []);
}
