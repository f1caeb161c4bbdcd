//! A table of what can be wrong with a flow file, and what is said about it.

use super::*;

const FILES: FileRoot = FileRoot::Embedded(&[
    ("book.txt", b"words"),
    ("big.py", &[b'#'; 20_000]),
    ("huge.py", &[b'#'; SCRIPT_TOO_LARGE]),
    ("binary.py", &[0xff, 0xfe]),
]);
const SCRIPT_TOO_LARGE: usize = model::limits::SCRIPT_BYTES_MAX + 1;

fn parse(text: &str) -> Result<FlowFile, Problems> {
    parse_with(text, &[])
}

fn parse_with(text: &str, env: &[(&str, &str)]) -> Result<FlowFile, Problems> {
    let env: Vec<_> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    FlowFile::parse(FlowFileSource { name: "f.yaml".into(), text: text.into(), files: FILES }, &env)
}

fn problems(text: &str) -> Vec<String> {
    let problems = parse(text).expect_err(text);
    problems.to_string().lines().map(str::to_owned).collect()
}

/// A flow with one good job, whose lines follow.
fn with_job(rest: &str) -> String {
    let rest: String = rest.lines().map(|line| format!("    {line}\n")).collect();
    format!("name: f\njobs:\n  a:\n    script_type: shell\n    script: 'true'\n{rest}")
}

#[test]
fn the_specifications_example_is_read() {
    let file = parse(
        r#"
name: word-count
context: 7
env: { LANG: C.UTF-8, VERSION: 1.0, PORT: 8080, ANSWER: yes, ON: true, BIG: 18446744073709551616, FAR: 1e400 }
fail_fast: true
deadline: 600
jobs:
  split:
    script_type: python
    script_file: big.py
    files: { book.txt: book.txt }
    outputs: [part_a.txt]
    timeout: 30
  count-a:
    script_type: python
    dependends: [split]
    retries: 2
    backoff: { initial: 0.5, multiplier: 3, max: 10 }
    no_retry_exit_codes: [2, 64]
    losses: 0
    loss_backoff: { initial: 2, max: 20 }
    idempotent: false
    target: { group: gpu, instance: 1, labels: { zone: a } }
    script: |
      import mycora
      mycora.result(total=2)
  report:
    script_type: shell
    depends: [count-a]
    run_if: ALL_DONE
    allow_failure: true
    priority: 0
    prerequisites: [signal:go, "after:2026-01-01T00:00:00Z", flow:7]
    when: results["count-a"].total > 0
    env: { TOTAL: "${{ results.count-a.total }}" }
    script: echo "total=$TOTAL" >> "$MYCORA_RESULT"
"#,
    )
    .expect("a good file");
    assert_eq!((file.context, file.spec.name.as_str()), (Some(7), "word-count"));
    let env: Vec<_> = file.spec.env_vars.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(
        env,
        [
            "ANSWER=yes",
            "BIG=18446744073709551616",
            "FAR=1e400",
            "LANG=C.UTF-8",
            "ON=true",
            "PORT=8080",
            "VERSION=1.0"
        ]
    );
    let names: Vec<_> = file.spec.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["split", "count-a", "report"], "in the order of the file");

    let split = file.spec.nodes[0].job.as_ref().expect("a job");
    let Some(v1::script::Source::Blob(script)) = split.script.as_ref().and_then(|s| s.source.clone()) else {
        panic!("a long script travels as a blob");
    };
    let uploads: Vec<_> = file.uploads.iter().map(|u| (u.blob.sha256.to_string(), u.blob.size)).collect();
    assert_eq!(uploads.len(), 2);
    assert!(uploads.contains(&(script.sha256, 20_000)));
    assert!(uploads.contains(&(split.files["book.txt"].sha256.clone(), 5)));
    for upload in &file.uploads {
        assert_eq!(upload.bytes(&file.files).expect("there").len() as u64, upload.blob.size);
    }

    let count = &file.spec.nodes[1];
    let policy = count.policy.clone().expect("a policy");
    assert_eq!(count.depends, ["split"]);
    assert_eq!((policy.retries, policy.timeout_secs, policy.no_retry_exit_codes), (2, None, vec![2, 64]));
    assert_eq!(policy.backoff, Some(v1::Backoff { initial_secs: 0.5, multiplier: 3.0, max_secs: 10.0 }));
    assert_eq!((policy.losses, policy.idempotent), (Some(0), Some(false)));
    assert_eq!(policy.loss_backoff, Some(v1::Backoff { initial_secs: 2.0, multiplier: 0.0, max_secs: 20.0 }));
    let target = count.target.clone().expect("a target");
    assert_eq!(
        (target.group.as_str(), target.instance, target.labels["zone"].as_str()),
        ("gpu", Some(1), "a")
    );
    let report = &file.spec.nodes[2];
    assert_eq!((report.run_if(), report.allow_failure), (v1::RunIf::AllDone, true));
    assert_eq!(report.policy.as_ref().and_then(|policy| policy.priority), Some(0));
    assert_eq!(report.prerequisites, ["signal:go", "after:2026-01-01T00:00:00Z", "flow:7"]);
    assert_eq!(report.when, "results[\"count-a\"].total > 0");
}

#[test]
fn json_is_read_as_well() {
    let yaml =
        parse("name: f\njobs:\n  a: {script_type: shell, script: 'true', timeout: 3}\n").expect("good");
    let json =
        parse(r#"{"name": "f", "jobs": {"a": {"script_type": "shell", "script": "true", "timeout": 3}}}"#)
            .expect("good");
    assert_eq!(yaml.spec, json.spec);
}

#[test]
fn anchors_and_merges_save_typing() {
    let file = parse(
        "name: f\njobs:\n  a: &base\n    script_type: shell\n    script: 'true'\n    timeout: 5\n  b:\n    <<: *base\n    depends: [a]\n",
    )
    .expect("good");
    assert_eq!(file.spec.nodes[1].policy.as_ref().and_then(|policy| policy.timeout_secs), Some(5));
}

#[test]
fn many_jobs_may_share_an_anchor_but_a_bomb_is_refused() {
    let mut text = "name: f\njobs:\n  a: &base {script_type: shell, script: 'true'}\n".to_owned();
    for i in 0..500 {
        text.push_str(&format!("  b{i}: *base\n"));
    }
    assert_eq!(parse(&text).expect("good").spec.nodes.len(), 501);

    let mut bomb = "x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n".to_owned();
    for i in 1..9 {
        let list = vec![format!("*x{}", i - 1); 10].join(", ");
        bomb.push_str(&format!("x{i}: &x{i} [{list}]\n"));
    }
    assert_eq!(problems(&bomb).len(), 1);
}

#[test]
fn what_is_wrong_has_line_and_column() {
    let table: &[(&str, &[&str])] = &[
        ("name: [f\njobs: {}\n", &["f.yaml:2:5: this is not YAML"]),
        (
            "name: f\n\tjobs: {}\n",
            &[
                "f.yaml:1:7: this is not YAML as a flow file needs it: while scanning a plain scalar, found a tab",
            ],
        ),
        ("- a\n- b\n", &["f.yaml:1:1: a flow is a mapping with keys such as `name`, not a list"]),
        ("", &["f.yaml:1:1: a flow is a mapping with keys such as `name`, not nothing"]),
        ("name: f\n", &["f.yaml:1:1: a flow needs jobs; write `jobs:`"]),
        ("name: f\njobs: {}\n", &["f.yaml:2:7: jobs: a flow needs at least one node"]),
        (
            "name: f\njobs: [a]\n",
            &["f.yaml:2:7: `jobs` maps the name of each job to the job, it is not a list"],
        ),
        (
            "name: f f\njobs:\n  a: {script_type: shell, script: x}\n",
            &["f.yaml:1:7: name: a name is made of A-Z a-z 0-9 _ and -, not ' '"],
        ),
        (
            "name: f\njobs:\n  a: {script_type: shell, script: x}\n  a: {script_type: shell, script: y}\n",
            &["f.yaml:4:3: `a` is written twice in the same mapping"],
        ),
        (
            "name: f\njobs:\n  a b: {script_type: shell, script: x}\n",
            &["f.yaml:3:3: jobs.a b: a name is made of A-Z a-z 0-9 _ and -, not ' '"],
        ),
        (
            "name: f\njobs:\n  a: {script_type: pyton, script: x}\n",
            &[
                "f.yaml:3:20: `pyton` is not a script type; there are python, shell, v, rust, rhai, osis and sal; \
               did you mean `python`?",
            ],
        ),
        (
            "name: f\njobs:\n  a: {script: x}\n",
            &["f.yaml:3:3: the job `a` needs a script_type: one of python, shell"],
        ),
        (
            "name: f\njobs:\n  a: {script_type: shell}\n",
            &["f.yaml:3:3: the job `a` needs a `script`, a `script_file` or a `created_job`"],
        ),
        (
            "name: f\njobs:\n  a: {script_type: shell, script: ''}\n",
            &["f.yaml:3:35: jobs.a.script: a job needs a script"],
        ),
        (
            "name: f\njobs:\n  a: {script_type: shell, script_file: none.sh}\n",
            &[
                "f.yaml:3:40: cannot read `none.sh`: it is not part of the program; paths are relative to the flow file",
            ],
        ),
        (
            "name: f\njobs:\n  a: {script_type: shell, script_file: huge.py}\n",
            &["f.yaml:3:40: `huge.py` has 1048577 bytes; a script has at most 1048576"],
        ),
        (
            "name: f\njobs:\n  a: {script_type: shell, script_file: binary.py}\n",
            &["f.yaml:3:40: `binary.py` is not a text in UTF-8"],
        ),
        (
            "name: f\njobs:\n  a: {script_type: shell, script: x, depends: [b]}\n  bb: {script_type: shell, script: x}\n",
            &["f.yaml:3:48: jobs.a.depends: `a` depends on `b`, which is not in the flow"],
        ),
        (
            "name: f\njobs:\n  a: {script_type: shell, script: x, depends: [b]}\n  b:\n    script_type: shell\n    script: x\n    depends:\n      - a\n",
            &[
                "f.yaml:3:38: jobs.a.depends: the dependencies form a cycle, each waits for the next: a -> b -> a",
            ],
        ),
    ];
    let mut wrong = String::new();
    for (text, expected) in table {
        let found = problems(text);
        assert_eq!(found.len(), expected.len(), "{text}: {found:#?}");
        for (found, expected) in found.iter().zip(*expected) {
            if !found.starts_with(expected) {
                wrong.push_str(&format!("{text}\nfound    {found}\nexpected {expected}\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn times_are_written_in_seconds_or_with_units() {
    let file = parse(&with_job("timeout: 5m\ntimeout_queue: 90\ntimeout_result: 2h")).expect("good");
    let policy = file.spec.nodes[0].policy.clone().expect("one");
    assert_eq!(
        (policy.timeout_secs, policy.timeout_queue_secs, policy.timeout_result_secs),
        (Some(300), 90, 7200)
    );
}

#[test]
fn what_is_wrong_with_a_job_has_line_and_column() {
    let table: &[(&str, &str)] = &[
        (
            "secrets: [x]",
            "6:5: the job `a` has no key `secrets`; what stands in a flow file or in a variable may be read",
        ),
        ("requirements: [x]", "6:5: the job `a` has no key `requirements`; install packages on the machine"),
        ("timeot: 3", "6:5: the job `a` has no key `timeot`; did you mean `timeout`?"),
        ("colour: red", "6:5: the job `a` has no key `colour`; there are script_type, script, script_file"),
        ("prerequisites: go", "6:20: `prerequisites` has to be a list, such as [go], not `go`"),
        ("prerequisites: [signal: go]", "6:21: write `signal:go`, without a space"),
        (
            "prerequisites: ['after:noon']",
            "6:21: jobs.a.prerequisites: after `after:` comes a time as RFC 3339",
        ),
        (
            "prerequisites: [go, 'flow:x']",
            "6:25: jobs.a.prerequisites: after `flow:` comes the number of a flow",
        ),
        ("prerequisites: [go, signal:go]", "6:25: jobs.a.prerequisites: `signal:go` is named twice"),
        ("when: [x]", "6:11: `when` has to be a text, not a list"),
        ("script_file: book.txt", "6:5: the job `a` has both `script` and `script_file`; keep one of them"),
        (
            "depends: []\ndependends: []",
            "7:5: `dependends` is an older spelling of `depends`; keep one of them",
        ),
        ("depends: b", "6:14: `depends` has to be a list, such as [b], not `b`"),
        ("depends: [a]", "6:15: jobs.a.depends: `a` depends on itself"),
        (
            "run_if: all_done",
            "6:13: `all_done` is no condition for run_if; did you mean `ALL_DONE`?; there are",
        ),
        (
            "run_if: ANY_FAILED",
            "6:13: jobs.a.run_if: `a` depends on nothing, so ANY_FAILED never lets it run",
        ),
        ("timeout: soon", "6:14: `timeout` has to be seconds, or a time as 90s, 5m, 2h or 7d, not `soon`"),
        ("timeout: -1", "6:14: `timeout` has to be seconds, or a time as 90s, 5m, 2h or 7d, not `-1`"),
        (
            "timeout:",
            "6:12: `timeout` has to be seconds, or a time as 90s, 5m, 2h or 7d; nothing is written there",
        ),
        (
            "timeout: 2592001",
            "6:14: jobs.a.timeout: at most 2592000 seconds (30 days) are allowed, not 2592001",
        ),
        (
            "timeout: 99999999999999999999",
            "6:14: `timeout` has to be seconds, or a time as 90s, 5m, 2h or 7d, not `9999",
        ),
        ("retries: 101", "6:14: jobs.a.retries: at most 100 are allowed, not 101"),
        ("losses: 101", "6:13: jobs.a.losses: at most 100 are allowed, not 101"),
        ("idempotent: no", "6:17: `idempotent` has to be true or false, not `no`"),
        (
            "loss_backoff: {max: -1}",
            "6:25: jobs.a.loss_backoff.max: 0 to 2592000 seconds are allowed, not -1",
        ),
        (
            "priority: high",
            "6:15: `priority` has to be 0, 1 or 2, where 0 goes first and 1 is usual, not `high`",
        ),
        ("priority: 3", "6:15: jobs.a.priority: a priority is 0 (first), 1 or 2, not 3"),
        ("backoff: {multiplier: 0.5}", "6:27: jobs.a.backoff.multiplier: 1 to 1000 is allowed, not 0.5"),
        ("backoff: {factor: 2}", "6:15: a backoff has no key `factor`; there are initial, multiplier, max"),
        ("no_retry_exit_codes: [300]", "6:27: an exit code is a number from 0 to 255, not 300"),
        ("allow_failure: yes", "6:20: `allow_failure` has to be true or false, not `yes`"),
        (
            "env: {1A: x}",
            "6:11: jobs.a.env.1A: a variable's name is a letter or _, then letters, digits and _",
        ),
        ("env: {MYCORA_X: x}", "6:11: jobs.a.env.MYCORA_X: names that begin with MYCORA_"),
        ("env: {X: [1]}", "6:14: `X` has to be a text (write \"\" for an empty one), not a list"),
        ("env: {X: }", "6:12: `X` has to be a text (write \"\" for an empty one); nothing is written there"),
        (
            "env: {X: '${{ results.b.k }}'}",
            "6:11: jobs.a.env.X: `results.b.k` refers to `b`, which is not in the flow",
        ),
        (
            "env: {X: '${{ results.a.k }}'}",
            "6:11: jobs.a.env.X: it refers to `a`, which does not come before `a`",
        ),
        ("env: {X: '${{ nonsense }}'}", "6:11: jobs.a.env.X: `nonsense` is not a reference; write"),
        ("env: {X: '${{ flow.id'}", "6:11: jobs.a.env.X: `${{` at byte 0 has no `}}`"),
        ("files: {book.txt: nothing.txt}", "6:23: cannot read `nothing.txt`"),
        ("files: {../x: book.txt}", "6:13: jobs.a.files.../x: a file's path is relative"),
        ("files: [book.txt]", "6:12: `files` has to be a mapping from names to paths"),
        ("outputs: [o, o]", "6:18: jobs.a.outputs: `o` is named twice"),
        (
            "outputs: [a, '*.csv']",
            "6:18: jobs.a.outputs: `*.csv` is a pattern, and each output is one file: name its files, or let",
        ),
        ("outputs: [out/]", "6:15: jobs.a.outputs: `out/` is a directory, and each output is one file"),
        ("outputs: [/o]", "6:15: jobs.a.outputs: a file's path is relative"),
        ("target: {instance: 1}", "6:24: jobs.a.target.instance: an instance is a number within a group"),
        ("target: {group: 'a b'}", "6:21: jobs.a.target.group: a name is made of"),
        ("target: {grup: x}", "6:14: a target has no key `grup`; did you mean `group`?"),
    ];
    let mut wrong = String::new();
    for (text, expected) in table {
        let found = problems(&with_job(text));
        assert_eq!(found.len(), 1, "{text}: {found:#?}");
        let found = found[0].strip_prefix("f.yaml:").unwrap_or(&found[0]);
        if !found.starts_with(expected) {
            wrong.push_str(&format!("{text}\nfound    {found}\nexpected {expected}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_job_may_name_one_that_is_kept() {
    let text = "name: f\njobs:\n  a: { created_job: 7, timeout: 5, isolation: confined }\n  b:\n    created_job: 7\n    depends: [a]\n    when: results.a.n > 0\n";
    let file = parse(text).expect("good");
    let named: Vec<_> =
        file.spec.nodes.iter().map(|node| (node.created_job_id, node.job.is_none())).collect();
    assert_eq!(named, [(7, true), (7, true)]);
    assert_eq!(file.spec.nodes[0].policy.as_ref().and_then(|policy| policy.timeout_secs), Some(5));
    let refused = file.created_job_problems("no").expect("two of them").to_string();
    assert_eq!(refused, "f.yaml:3:21: jobs.a.created_job: no\nf.yaml:5:18: jobs.b.created_job: no");
    let of_the_server =
        file.locate(&[Violation { field: "flow.nodes[1].job.env_vars[A]".into(), description: "no".into() }]);
    assert_eq!(of_the_server.to_string(), "f.yaml:4:3: jobs.b: no");
    assert_eq!(parse(&with_job("")).expect("good").created_job_problems("no"), None);
}

#[test]
fn fields_of_a_kept_job_may_not_be_set_again() {
    let found = problems(&with_job("created_job: 7\nenv: { A: x }\nretries: 1"));
    let expected = [("4:5", "script_type"), ("5:5", "script"), ("7:5", "env")].map(|(place, key)| {
        format!(
            "f.yaml:{place}: the job `a` names a kept job in line 6 (`created_job`), which says its own `{key}`; keep one \
             of them"
        )
    });
    assert_eq!(found, expected);
    for (number, expected) in [
        ("0", "f.yaml:3:20: `created_job` is the number of a job, from 1 on, not 0"),
        ("x", "f.yaml:3:20: `created_job` has to be a whole number from 0 on, not `x`"),
    ] {
        assert_eq!(problems(&format!("name: f\njobs:\n  a: {{created_job: {number}}}\n")), [expected]);
    }
}

#[test]
fn everything_is_listed_at_once_in_the_order_of_the_file() {
    let found = problems(
        "nam: f\nfail_fast: 3\njobs:\n  a:\n    script_type: pyhton\n    depends: [c]\n    script: x\n    retries: 200\n  b: {script_type: shell, depends: [aa]}\n",
    );
    let places: Vec<_> = found.iter().map(|line| line.split(": ").next().unwrap_or_default()).collect();
    let expected = ["1:1", "1:1", "2:12", "5:18", "6:15", "8:14", "9:3", "9:37"];
    assert_eq!(places, expected.map(|place| format!("f.yaml:{place}")), "{found:#?}");
}

#[test]
fn the_command_lines_variables_win() {
    let text = format!("env: {{ A: 1, B: 2 }}\n{}", with_job(""));
    let file = parse_with(&text, &[("B", "3"), ("C", "4")]).expect("good");
    let env: Vec<_> = file.spec.env_vars.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(env, ["A=1", "B=3", "C=4"]);
    let refused = parse_with(&text, &[("1X", "3")]).expect_err("a bad name").to_string();
    assert!(refused.starts_with("f.yaml: --env 1X: a variable's name"), "{refused}");
}

fn warnings(text: &str, env: &[(&str, &str)]) -> Vec<String> {
    let warnings = parse_with(text, env).expect(text).warnings();
    let lines = warnings.map(|warnings| yaml::Warnings(&warnings).to_string()).unwrap_or_default();
    lines.lines().map(str::to_owned).collect()
}

fn assert_warnings(text: &str, env: &[(&str, &str)], expected: &[&str]) {
    let found = warnings(text, env);
    assert_eq!(found.len(), expected.len(), "{text}: {found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        let rest = found.strip_prefix("warning: f.yaml:").unwrap_or(found);
        assert!(rest.starts_with(expected), "{text}\nfound    {rest}\nexpected {expected}");
    }
}

#[test]
fn a_reference_that_is_not_replaced_is_warned_of() {
    let script = "name: f\njobs:\n  a:\n    script_type: shell\n    script: |\n      date\n      echo ${{ flow.id }}\n";
    let warning = "line 2 of the script has `${{ flow.id }}`, and references are replaced in `env` alone: write \
                `env: { VALUE: \"${{ flow.id }}\" }` and read";
    assert_warnings(script, &[], &[&format!("6:7: jobs.a.script: {warning}")]);
    let long = script.replace("date\n", &format!("# {}\n", "x".repeat(20_000)));
    assert_warnings(&long, &[], &[&format!("6:7: jobs.a.script: {warning}")]);
    assert_warnings(
        &with_job("outputs: ['${{ flow.name }}.csv']"),
        &[],
        &["6:15: jobs.a.outputs: names of files are taken as they are written, and `${{ flow.name }}`"],
    );
    for good in ["env: { X: '${{ flow.id }}' }", "files: { '${{x}}': book.txt }"] {
        assert_warnings(&with_job(good), &[], &[]);
    }
}

#[test]
fn a_variable_that_reaches_no_script_is_warned_of() {
    let text = "name: f\nenv: { KNOWN: x }\njobs:\n  a: { script_type: shell, script: 'echo $GREETING $KNOWN', env: { KNOWN: y } }\n";
    assert_warnings(text, &[("GREETING", "hi"), ("TZ", "UTC"), ("LC_ALL", "C"), ("http_proxy", "none")], &[]);
    assert_warnings(
        text,
        &[("GREETNG", "hi"), ("KNOWN", "z")],
        &[
            " --env GREETNG: no script or file of the flow mentions `GREETNG`; a program",
            " --env KNOWN: every job that mentions `KNOWN` sets it itself, and a job's own `env` wins",
        ],
    );
    let with_file = text.replace("env: { KNOWN: y }", "files: { b: book.txt }");
    assert_warnings(&with_file, &[("words", "in the file")], &[]);
    assert_warnings("name: f\njobs:\n  a: { created_job: 7 }\n", &[("ANY", "x")], &[]);
}

#[test]
fn a_variable_that_a_python_job_does_not_obey_is_warned_of() {
    let text = |kind: &str| {
        format!(
            "name: f\njobs:\n  a: {{ script_type: {kind}, script: x, env: {{ PYTHONPATH: lib, PYTHONHASHSEED: '0' }} }}\n"
        )
    };
    let warning = "3:64: jobs.a.env.PYTHONHASHSEED: the interpreter of a python job is started before";
    assert_warnings(&text("python"), &[], &[warning]);
    assert_warnings(&text("shell"), &[], &[]);
}

#[test]
fn what_the_server_refuses_is_led_back() {
    let file = parse(&with_job("timeout: 5\nfiles: {a.b: book.txt}")).expect("good");
    let violation = |field: &str| Violation { field: field.into(), description: "no".into() };
    let located = file.locate(&[
        violation("flow.nodes[0].policy.timeout_secs"),
        violation("flow.nodes[0].job.files[a.b].sha256"),
        violation("context_id"),
    ]);
    assert_eq!(
        located.to_string(),
        "f.yaml: context_id: no\nf.yaml:6:14: jobs.a.timeout: no\nf.yaml:7:13: jobs.a.files.a.b: no"
    );
}

#[test]
fn a_crowded_flow_sends_its_scripts_as_blobs() {
    let script = "# a comment that is long enough to matter\n".repeat(250);
    let indented: String = script.lines().map(|line| format!("      {line}\n")).collect();
    let mut text = "name: f\njobs:\n".to_owned();
    for i in 0..400 {
        text.push_str(&format!("  j{i}:\n    script_type: python\n    script: |\n{indented}"));
    }
    let file = parse(&text).expect("good");
    assert!(file.spec.encoded_len() < SUBMIT_BYTES_MAX);
    assert_eq!(file.uploads.len(), 1, "each content once");
}

#[test]
fn a_large_flow_is_good_and_travels_in_parts() {
    let script = "x".repeat(3000);
    let mut text = "name: f\njobs:\n".to_owned();
    for i in 0..1200 {
        text.push_str(&format!("  j{i}: {{script_type: python, script: '{script}{i}'}}\n"));
    }
    let file = parse(&text).expect("good");
    assert!(!file.fits_one_call() && file.uploads.is_empty(), "nothing is shared");
    let sizes: Vec<_> = node_batches(&file.spec.nodes).map(|(at, part)| (at, part.len())).collect();
    assert_eq!(sizes.len(), 2);
    assert_eq!(sizes.iter().map(|(_, nodes)| nodes).sum::<usize>(), 1200);
}

#[test]
fn a_job_that_fits_no_call_is_refused() {
    let names: Vec<String> = (0..30_000).map(|i| format!("{}{i}", "n".repeat(110))).collect();
    let mut text = "name: f\njobs:\n".to_owned();
    for name in &names {
        text.push_str(&format!("  {name}: {{script_type: shell, script: x}}\n"));
    }
    text.push_str(&format!("  join: {{script_type: shell, script: x, depends: [{}]}}\n", names.join(", ")));
    let found = problems(&text);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("f.yaml:30003:3: jobs.join: the job has 3"), "{found:?}");
}

#[test]
fn yaml_errors_are_reported_without_the_text_of_the_library() {
    for (text, expected) in [
        ("a: b\n---\nc: d\n", "a second document begins here"),
        ("a: *nope\n", "no anchor of this name stands before it"),
        ("a: &x [*x]\n", "an alias stands for what it is part of"),
        ("? [a]\n: b\n", "a key has to be a text"),
        ("~: b\n", "a key has to be a text"),
        ("a: !!int x\n", "the value does not fit its tag"),
        ("<<: 3\n", "`<<` takes a mapping"),
        (
            &format!("{}{}", "[".repeat(100), "]".repeat(100)),
            "the file has more than 4000000 values, or more than 32",
        ),
    ] {
        let found = problems(text);
        assert!(found[0].contains(expected), "{text}: {found:?}");
    }
}

/// Rows of the table below a heading of the page about flow files.
fn rows_of_the_page(heading: &str) -> Vec<String> {
    let page = include_str!("../../../specs/flow-file.md");
    let lines = page.lines().skip_while(|line| line.trim_start_matches('#').trim() != heading).skip(1);
    let table = lines.take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with("| `"));
    table.filter_map(|line| line.split('`').nth(1)).map(str::to_owned).collect()
}

#[test]
fn the_page_about_flow_files_has_every_key() {
    for (heading, keys) in [
        ("The flow", keys::FLOW_KEYS),
        ("A job", &[keys::JOB_KEYS, keys::OLDER_JOB_KEYS].concat()),
        ("`backoff`", keys::BACKOFF_KEYS),
        ("`target`", keys::TARGET_KEYS),
    ] {
        let mut known = keys::names(keys);
        let mut listed = rows_of_the_page(heading);
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, known, "{heading}");
    }
}

#[test]
fn the_examples_of_the_page_are_good() {
    let page = include_str!("../../../specs/flow-file.md");
    let examples: Vec<_> =
        page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 2);
    for example in examples {
        parse(example).expect(example);
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let refused = FlowFileSource::open("/nowhere/flow.yaml").expect_err("not there").to_string();
    assert!(refused.starts_with("/nowhere/flow.yaml: cannot be read: "), "{refused}");
}
