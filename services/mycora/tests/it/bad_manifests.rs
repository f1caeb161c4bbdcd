//! Bad manifests on the command line: each is named with its place, the exit code is 2, and nothing that is in force changes.

use std::path::Path;

use crate::detached::DetachedFixture;
use crate::saga_service::{APPROVAL, SagaSuiteFixture};
use crate::{home, run, stderr, stdout};

/// The mistakes that the reader of manifests is tested with.
#[path = "../../../../libs/workflow/src/manifest/tests/bad.rs"]
mod bad;

use self::bad::BAD;

const EXAMPLE: &str = include_str!("../../../../libs/workflow/src/manifest/example.yaml");

/// A file with one mistake.
struct Mistake {
    name: String,
    text: String,
    /// Text that the report of the mistake has to contain.
    expected: &'static str,
    /// True for a mistake of the file by itself, whatever stands in others.
    is_alone: bool,
}

/// All mistakes, each in a file of its own in a directory.
fn mistakes(directory: &str) -> Vec<Mistake> {
    let all = BAD.iter().enumerate().map(|(number, (good, bad, expected))| {
        let (name, text) = (format!("{directory}/bad-{number:02}.yaml"), EXAMPLE.replacen(good, bad, 1));
        let is_alone = workflow::manifest::read(&name, &text).is_err();
        Mistake { name, text, expected, is_alone }
    });
    all.collect()
}

fn write(home: &Path, mistakes: &[Mistake]) {
    for Mistake { name, text, .. } in mistakes {
        std::fs::write(home.join(name), text).expect("written");
    }
}

/// Checks that each reported line has the position of a problem: its file, its line and its column.
fn all_have_places(printed: &str) {
    for line in printed.lines() {
        let place = line.split(": ").next().unwrap_or_default();
        let mut parts = place.rsplitn(3, ':');
        let number =
            |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok()).filter(|number| *number > 0);
        let is_place = number(parts.next()).is_some() && number(parts.next()).is_some();
        assert!(is_place && parts.next().is_some_and(|file| file.ends_with(".yaml")), "{line}");
    }
}

/// Checks that a mistake was reported, with its file, its line and its column.
fn assert_reported(printed: &str, mistake: &Mistake) {
    let Mistake { name, expected, is_alone, .. } = mistake;
    let of_file: Vec<_> = printed.lines().filter(|line| line.starts_with(&format!("{name}:"))).collect();
    assert!(!of_file.is_empty(), "{name} ({expected}) is not named: {printed}");
    assert!(!is_alone || of_file.iter().any(|line| line.contains(expected)), "{expected}: {of_file:?}");
}

#[test]
fn a_directory_of_invalid_manifests_is_reported_with_every_file() {
    let home = home();
    std::fs::create_dir(home.path().join("manifests")).expect("made");
    let mistakes = mistakes("manifests");
    assert!(mistakes.len() >= 40);
    write(home.path(), &mistakes);
    let output = run(home.path(), &["saga", "validate", "manifests"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""));
    let printed = stderr(&output);
    all_have_places(&printed);
    mistakes.iter().for_each(|mistake| assert_reported(&printed, mistake));
    let output = run(home.path(), &["saga", "validate", "manifests", "--output", "json"]);
    assert_eq!(output.status.code(), Some(2));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    let problems = document["problems"].as_array().expect("problems");
    assert_eq!(problems.len(), printed.lines().count());
    // A mistake that depends on other files is reported when the file is checked without them.
    let together: Vec<_> = mistakes.iter().filter(|mistake| !mistake.is_alone).collect();
    assert!(!together.is_empty());
    for Mistake { name, expected, .. } in together {
        let output = run(home.path(), &["saga", "validate", name]);
        assert_eq!(output.status.code(), Some(2), "{expected}");
        let printed = stderr(&output);
        all_have_places(&printed);
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
}

#[test]
fn what_is_in_force_stays_as_it_is() {
    let place = DetachedFixture::new();
    let dir = place.dir.path().to_owned();
    std::fs::create_dir(dir.join("manifests")).expect("made");
    std::fs::write(dir.join("manifests/approval.yaml"), APPROVAL).expect("written");
    let own = APPROVAL.replace("name: approval", "name: own");
    let own = own.replace("start: {", "sources: [{ aggregate: Order }]\nstart: { on: Asked,");
    std::fs::write(dir.join("own.yaml"), &own).expect("written");
    let suite = SagaSuiteFixture::start_in(place, &["--manifests", "manifests"]);
    suite.text(&["apply", "own.yaml", "--tenant", "1"]);
    let in_force = || suite.document(&["definitions"]);
    let before = in_force();
    let names = before["definitions"].as_array().expect("a list").iter().map(|one| one["saga"].as_str());
    assert_eq!(names.collect::<Vec<_>>(), [Some("approval"), Some("own")]);

    // What is checked without a server is described as what is in force.
    let mut described = before["definitions"][1].clone();
    let described = described.as_object_mut().expect("an object");
    assert!(described.remove("inForce").is_some() && described.remove("appliedByTenant").is_some());
    assert_eq!(described["startEventTypes"], serde_json::json!(["Asked"]));
    let checked = suite.document(&["validate", "own.yaml"]);
    assert_eq!(checked["definitions"][0].as_object(), Some(&*described));

    // The operator's directory, read again with all of them in it.
    let mistakes = mistakes("manifests");
    write(&dir, &mistakes);
    let other = |text: &str| text.replace("after: 1h", "after: 2h");
    std::fs::write(dir.join("manifests/approval.yaml"), other(APPROVAL)).expect("written");
    for arguments in [&["reload", "--as", "admin"][..], &["reload", "--dry-run", "--as", "admin"]] {
        let (_, printed) = suite.run_command(arguments, 2);
        // The service names files by where it finds them.
        let printed = printed.lines().map(|line| line.find("manifests/").map_or(line, |at| &line[at..]));
        let printed = printed.collect::<Vec<_>>().join("\n");
        all_have_places(&printed);
        mistakes.iter().for_each(|mistake| assert_reported(&printed, mistake));
        let content = "version 1 of the saga `approval` is in force with other content; write `version: 2`";
        assert!(printed.contains(&format!("manifests/approval.yaml:1:1: {content}")), "{printed}");
        assert_eq!(in_force(), before);
    }

    // Each of them for one tenant, and another content of what it has.
    for mistake in &mistakes {
        let (_, printed) = suite.run_command(&["apply", &mistake.name, "--tenant", "1"], 2);
        all_have_places(&printed);
        assert_reported(&printed, mistake);
    }
    std::fs::write(dir.join("own.yaml"), other(&own)).expect("written");
    let (_, printed) = suite.run_command(&["apply", "own.yaml", "--tenant", "1"], 2);
    let content = "version 1 of the saga `own` is in force with other content; write `version: 2`";
    assert_eq!(printed, format!("own.yaml:1:1: {content}\n"));
    assert_eq!(in_force(), before);

    // Once they are gone a reload finds everything as it was.
    for Mistake { name, .. } in &mistakes {
        std::fs::remove_file(dir.join(name)).expect("removed");
    }
    std::fs::write(dir.join("manifests/approval.yaml"), APPROVAL).expect("written");
    assert!(suite.text(&["reload", "--as", "admin"]).starts_with("everything is as it was\n"));
    assert_eq!(in_force(), before);
}
