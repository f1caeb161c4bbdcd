//! Profiles by name, and paths in them.

use crate::{mycora, stderr, stdout};

const PROFILE: &str = "address = \"https://127.0.0.1:1\"\nca = \"pki/ca.pem\"\ncert = \"pki/actor-1.pem\"\nkey = \"pki/actor-1.key\"\n\
                       context = 1\nactor = 1\n\n[profiles.admin]\ncert = \"pki/admin.pem\"\nkey = \"pki/admin.key\"\n";

#[test]
fn a_profile_is_chosen_by_name_and_its_paths_are_those_of_the_file() {
    let home = tempfile::tempdir().expect("a directory");
    let (data, elsewhere) = (home.path().join("data"), home.path().join("elsewhere"));
    for dir in [&data, &elsewhere] {
        std::fs::create_dir(dir).expect("a directory");
    }
    std::fs::write(data.join("client.toml"), PROFILE).expect("written");
    let shown =
        |dir: &std::path::Path, config: &str, named: &[(&str, &str)], arguments: &[&str], code: i32| {
            let mut command = mycora(home.path());
            command.current_dir(dir).env("MYCORA_CONFIG", config).envs(named.iter().copied());
            let output = command.args(["connection", "--output", "json"]).args(arguments).output();
            let output = output.expect("it starts");
            assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
            output
        };
    let cert = |dir: &std::path::Path, config: &str, named: &[(&str, &str)], arguments: &[&str]| {
        let output = shown(dir, config, named, arguments, 0);
        let shown: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("one document");
        shown["cert"].as_str().expect("a path").to_owned()
    };
    let path = |name: &str| data.join("pki").join(name).display().to_string();
    for (dir, config) in
        [(home.path(), "data/client.toml"), (&data, "client.toml"), (&elsewhere, "../data/client.toml")]
    {
        let real = |cert: String| cert.replace("elsewhere/../", "");
        assert_eq!(real(cert(dir, config, &[], &[])), path("actor-1.pem"));
        assert_eq!(real(cert(dir, config, &[], &["--as", "admin"])), path("admin.pem"));
        assert_eq!(real(cert(dir, config, &[("MYCORA_AS", "admin")], &[])), path("admin.pem"));
    }
    let unknown = shown(&data, "client.toml", &[], &["--as", "root"], 2);
    assert!(
        stderr(&unknown).contains("client.toml has no profile `root`; it has admin"),
        "{}",
        stderr(&unknown)
    );
}

#[test]
fn help_describes_the_connection_in_one_place() {
    let home = tempfile::tempdir().expect("a directory");
    let help = |arguments: &[&str]| {
        let output = mycora(home.path()).args(arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    for arguments in [&["flow", "submit", "--help"][..], &["help", "flow", "list"], &["--help"]] {
        let help = help(arguments);
        assert!(!help.contains("--server-name") && help.contains("mycora help connection"), "{help}");
    }
    assert!(
        help(&["--help"]).contains("Show how the coordinator is reached, and as whom"),
        "it says what it does"
    );
    for arguments in [&["help", "connection"][..], &["connection", "--help"]] {
        let help = help(arguments);
        for flag in
            ["--as <NAME>", "--config <FILE>", "--address <URL>", "--cert <FILE>", "--server-name <NAME>"]
        {
            assert!(help.contains(flag), "{flag} is not in {help}");
        }
    }
}
