//! Files that are none of a script's business.

use sandbox::Confinement;

use crate::setup::{SandboxTestDir, text};

/// Without Landlock, and with everything else.
fn open(place: &SandboxTestDir) -> Confinement {
    Confinement { files: None, ..place.confined() }
}

#[tokio::test]
async fn files_of_another_context_cannot_be_read() {
    let place = SandboxTestDir::new();
    let other = place.root.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("secret"), "theirs\n").unwrap();
    let attack = format!("cat {0}/secret; ls {0}", text(&other));
    let kept = place.shell(&attack, place.confined()).await;
    assert!(
        kept.code != Some(0) && !kept.output.contains("theirs") && !kept.output.contains("\nsecret"),
        "{kept:?}"
    );
    let broken = place.shell(&attack, open(&place)).await;
    assert_eq!((broken.code, broken.output.as_str()), (Some(0), "theirs\nsecret\n"));
}

#[tokio::test]
async fn nothing_outside_can_be_written_removed_or_renamed() {
    let place = SandboxTestDir::new();
    let other = place.root.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("file"), "as it was\n").unwrap();
    let other = text(&other);
    for attack in [
        format!("echo changed > {other}/file"),
        format!("echo new > {other}/new"),
        format!("rm {other}/file"),
        format!("mv {other}/file {other}/renamed"),
        format!("ln {other}/file $HERE/link && echo changed > $HERE/link"),
        format!("mkdir {other}/dir"),
    ] {
        let kept = place.shell(&attack, place.confined()).await;
        assert!(kept.code.is_some_and(|code| code != 0), "{attack}: {kept:?}");
        assert_eq!(std::fs::read_to_string(place.root.path().join("other/file")).unwrap(), "as it was\n");
        assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1, "{attack}");
        let broken = place.shell(&attack, open(&place)).await;
        assert_eq!(broken.code, Some(0), "{attack}: {broken:?}");
        std::fs::remove_dir_all(&other).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(format!("{other}/file"), "as it was\n").unwrap();
        let _ = std::fs::remove_file(place.dir.join("link"));
    }
}

#[tokio::test]
async fn a_link_does_not_lead_out() {
    let place = SandboxTestDir::new();
    std::fs::write(place.root.path().join("secret"), "ours\n").unwrap();
    let attack = "ln -s ../secret out && ln -s .. up && cat out up/secret && echo changed > out";
    let kept = place.shell(attack, place.confined()).await;
    assert!(kept.code.is_some_and(|code| code != 0) && !kept.output.contains("ours"), "{kept:?}");
    std::fs::remove_file(place.dir.join("out")).unwrap();
    std::fs::remove_file(place.dir.join("up")).unwrap();
    let broken = place.shell(attack, open(&place)).await;
    assert_eq!((broken.code, broken.output.as_str()), (Some(0), "ours\nours\n"));
    assert_eq!(std::fs::read_to_string(place.root.path().join("secret")).unwrap(), "changed\n");
}

/// A user of its own keeps another context out also where the kernel has no Landlock.
#[tokio::test]
async fn another_user_is_kept_out_by_its_number_alone() {
    let place = SandboxTestDir::new();
    let secret = place.root.path().join("secret");
    std::fs::write(&secret, "ours\n").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let attack = format!("cat {}", text(&secret));
    let other = Confinement { owner: Some(1_900_000_123), ..Confinement::default() };
    let kept = place.shell(&attack, other).await;
    assert!(kept.code.is_some_and(|code| code != 0) && !kept.output.contains("ours"), "{kept:?}");
    let broken = place.shell(&attack, Confinement::default()).await;
    assert_eq!((broken.code, broken.output.as_str()), (Some(0), "ours\n"));
}

#[tokio::test]
async fn what_every_script_needs_is_there() {
    let place = SandboxTestDir::new();
    let script =
        "echo text > file && cat file && ls / > /dev/null; cat /etc/hosts > /dev/null && date > /dev/null";
    let outcome = place.shell(script, place.confined()).await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let script = "import json, ssl, subprocess, tempfile; print(subprocess.run(['id'], capture_output=True).returncode)";
    let outcome = place.run("/usr/bin/python3", &["-I", "-c", script], place.confined()).await;
    assert_eq!((outcome.code, outcome.output.as_str()), (Some(0), "0\n"));
    // pip and others end when they cannot open one that there is.
    let entries = std::fs::read_dir("/etc").unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let says_what_runs_here =
        |name: &String| name.ends_with("-release") || name.ends_with("_version") || name == "os-release";
    for name in names.filter(says_what_runs_here) {
        let outcome = place.shell(&format!("cat /etc/{name} > /dev/null"), place.confined()).await;
        assert_eq!(outcome.code, Some(0), "{name}: {outcome:?}");
    }
    for hidden in ["/etc/shadow", "/etc/ssh", "/root", "/home", "/var", "/proc/1/environ", "/run", "/tmp"] {
        let outcome = place.shell(&format!("cat {hidden} || ls {hidden}/"), place.confined()).await;
        assert!(outcome.code != Some(0), "{hidden}: {outcome:?}");
    }
}
