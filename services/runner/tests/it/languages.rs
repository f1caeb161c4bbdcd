//! What each language can do.

use model::execution::Outcome as Kind;
use model::{ReasonCode, ScriptType};

use crate::setup::{Bench, inputs, job, shell};

#[tokio::test]
async fn a_shell_job_knows_where_it_is_and_nothing_else() {
    let mut bench = Bench::new().await;
    let mut execution = shell(
        "env | cut -d= -f1 | sort | tr '\\n' ' '\necho \"$MYCORA_CONTEXT $MYCORA_FLOW $MYCORA_JOB $MYCORA_ATTEMPT\"\n\
         echo \"$GREETING\" >&2\ncat \"$MYCORA_INPUTS\"; (cat <&3) 2>&1 && echo leaked; ls -A",
    );
    execution.env_vars.insert("GREETING".into(), "hi ${{ results.split.rows }} of ${{ flow.name }}".into());
    execution.inputs = inputs(&[("rows", "1461"), ("what", "days")]);
    execution.traceparent = Some("00-1-1-01".into());
    let outcome = bench.run(execution).await;
    let names = "GREETING MYCORA_ATTEMPT MYCORA_CONTEXT MYCORA_FLOW MYCORA_INPUTS MYCORA_JOB MYCORA_RESULT PATH PWD TRACEPARENT";
    assert!(outcome.log.contains(names), "{}", outcome.log);
    for part in ["5 7 3 2\n", "hi 1461 of flow\n", r#"{"split":{"rows":1461,"what":"days"}}"#] {
        assert!(outcome.log.contains(part), "{part}: {}", outcome.log);
    }
    assert!(!outcome.log.contains("leaked"), "{}", outcome.log);
}

#[tokio::test]
async fn both_forms_of_a_result() {
    let mut bench = Bench::new().await;
    let outcome = bench.run(shell("echo a=1 >> $MYCORA_RESULT; echo 'b=x y' >> $MYCORA_RESULT")).await;
    assert_eq!((outcome.end.outcome, outcome.end.exit_code), (Kind::Succeeded, Some(0)));
    assert_eq!((outcome.result("a"), outcome.result("b")), ("1", "x y"));
    let outcome = bench.run(shell("echo '{\"n\": 1226.0, \"l\": [1, 2]}' > $MYCORA_RESULT")).await;
    assert_eq!((outcome.result("n"), outcome.result("l")), ("1226.0", "[1,2]"));

    let outcome = bench.run(shell("echo nonsense > $MYCORA_RESULT")).await;
    assert_eq!(outcome.end.outcome, Kind::Failed);
    let reason =
        "RUNTIME_ERROR: the script ended well, but line 1 of $MYCORA_RESULT is not key=value: nonsense";
    assert_eq!((outcome.reason().as_str(), outcome.end.exit_code), (reason, Some(0)));
    let outcome = bench.run(shell("head -c 2000000 /dev/zero | tr '\\0' x > $MYCORA_RESULT")).await;
    assert_eq!(outcome.end.reason.map(|reason| reason.code), Some(ReasonCode::ResultTooLarge));
    let outcome = bench.run(shell("rm $MYCORA_RESULT; ln -s /etc/passwd $MYCORA_RESULT")).await;
    assert!(outcome.reason().contains("symbolic link"), "{}", outcome.reason());
}

#[tokio::test]
async fn a_failure_has_its_code() {
    let mut bench = Bench::new().await;
    for (script_type, script, code, part) in [
        (ScriptType::Shell, "echo gone wrong >&2; echo a=1 > $MYCORA_RESULT; exit 3", 3, "gone wrong"),
        (ScriptType::Python, "import sys\nsys.exit(4)", 4, ""),
        (ScriptType::Python, "def f():\n    raise ValueError('bad')\nf()", 1, "script.py\", line 2, in f\n"),
        (ScriptType::Python, "x = (", 1, "SyntaxError"),
        (ScriptType::Rhai, "exit(5);", 5, ""),
        (ScriptType::Rhai, "let x = 1;\nlet y = x + missing;", 1, "line 2"),
        (ScriptType::Rhai, "let x = ;", 1, "line 1"),
        (ScriptType::Rhai, "throw \"up\"", 1, "up"),
    ] {
        let outcome = bench.run(job(script_type, script)).await;
        assert_eq!(
            (outcome.end.outcome, outcome.end.exit_code),
            (Kind::Failed, Some(code)),
            "{script}: {outcome:?}"
        );
        assert!(outcome.log.contains(part), "{script}: {}", outcome.log);
        assert_eq!(outcome.end.reason.as_ref().map(|reason| reason.code), Some(ReasonCode::ExitCode));
        assert!(outcome.end.result.is_empty());
        assert!(!outcome.log.contains("bootstrap.py"), "{}", outcome.log);
    }
    let outcome = bench.run(shell("kill -9 $$")).await;
    assert_eq!(outcome.end.exit_code, None);
    assert!(outcome.reason().contains("signal 9"), "{}", outcome.reason());
}

#[tokio::test]
async fn a_python_job_uses_its_module() {
    let mut bench = Bench::new().await;
    let mut execution = job(
        ScriptType::Python,
        "import mycora, sys\n\
         assert __name__ == '__main__'\n\
         split = mycora.inputs()['split']\n\
         mycora.log('rows', split['rows'])\n\
         mycora.result(rows=split['rows'] + 1, half=0.5, names=['a'], text='t')\n\
         mycora.result(text=mycora.env('WORD'), ok=True)\n\
         print(sys.flags.isolated, mycora.env('HOME'))\n",
    );
    execution.env_vars.insert("WORD".into(), "grün".into());
    execution.inputs = inputs(&[("rows", "41")]);
    let outcome = bench.run(execution).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
    let result: Vec<_> = outcome.end.result.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(
        result,
        [("half", "0.5"), ("names", "[\"a\"]"), ("ok", "true"), ("rows", "42"), ("text", "grün")]
    );
    assert!(outcome.log.contains("rows 41\n") && outcome.log.contains("1 None\n"), "{}", outcome.log);
}

#[tokio::test]
async fn a_rhai_job_merges() {
    let mut bench = Bench::new().await;
    let mut execution = job(
        ScriptType::Rhai,
        r#"
        let total = 0;
        for node in inputs.keys() { total += inputs[node].rows; }
        print(`total ${total} ${env.WORD}`);
        result("total", total);
        result(#{ list: [1, 2.5, "x"], word: env.WORD });
        write_file("report.json", to_json(#{ total: total }));
        let back = parse_json(read_file("report.json"));
        result("back", back.total == total);
        "#,
    );
    execution.env_vars.insert("WORD".into(), "w".into());
    execution.inputs = inputs(&[("rows", "41")]);
    execution.outputs = vec!["report.json".into()];
    let outcome = bench.run(execution).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{outcome:?}");
    let result: Vec<_> = outcome.end.result.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(result, [("back", "true"), ("list", "[1,2.5,\"x\"]"), ("total", "41"), ("word", "w")]);
    assert_eq!(outcome.log, "total 41 w\n");
    let blob = outcome.end.outputs["report.json"];
    let kept = runner::blob_path(&bench.work(), crate::setup::context(), blob.sha256);
    assert_eq!(std::fs::read_to_string(kept).expect("an output"), "{\"total\":41}");
}

#[tokio::test]
async fn a_rhai_job_stays_inside() {
    let mut bench = Bench::new().await;
    for (script, part) in [
        ("read_file(\"/etc/passwd\")", "leads out"),
        ("write_file(\"../x\", \"y\")", "leads out"),
        ("import \"other\" as o;", "module"),
        ("let s = \"x\"; loop { s += s; }", "Length of string too large"),
        ("fn f(n) { f(n + 1) } f(0)", "Stack overflow"),
    ] {
        let outcome = bench.run(job(ScriptType::Rhai, script)).await;
        assert_eq!(outcome.end.exit_code, Some(1), "{script}: {outcome:?}");
        assert!(outcome.log.to_lowercase().contains(&part.to_lowercase()), "{script}: {}", outcome.log);
    }
}
