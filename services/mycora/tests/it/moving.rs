//! Exports and imports of contexts: files that are whole, whatever breaks.

use crate::commands::CommandFixture;
use crate::coordinator::CoordinatorScript;
use crate::coordinator::storage::{CONTEXT_UID, export_file, export_frames};
use crate::{stderr, stdout};

#[test]
fn an_export_that_breaks_off_continues_behind_its_last_whole_frame() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let shown = stdout(&place.run_command(&["context", "export", "3", "three.mycora"], 0));
    assert!(shown.starts_with("context 3 is in three.mycora: 2 records, 0 actors, "), "{shown}");
    assert_eq!(std::fs::read(place.home.path().join("three.mycora")).expect("a file"), export_file());
    assert!(!place.home.path().join("three.mycora.part").exists());
    assert_eq!(place.calls(), ["export 3 false 0 ``", "export 3 false 2 `behind a`"]);

    let taken = stderr(&place.run_command(&["context", "export", "3", "three.mycora"], 2));
    assert!(taken.contains("--force"), "{taken}");
    let flags = ["--force", "--no-secrets"];
    let document = place.document(&[&["context", "export", "3", "three.mycora"], &flags[..]].concat(), 0);
    assert_eq!((&document["frames"], &document["records"]), (&4.into(), &2.into()), "{document}");
    assert_eq!(document["contextUid"], CONTEXT_UID);
}

#[test]
fn a_part_is_kept_and_taken_up_by_the_next_call() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let part = place.home.path().join("three.mycora.part");
    let frames = export_frames();
    let whole = [archive::HEADER, &frames[..2].concat()].concat();
    // With the beginning of a frame that did not arrive.
    std::fs::write(&part, [&whole[..], &frames[2][..20]].concat()).expect("written");
    place.run_command(&["context", "export", "3", "three.mycora"], 0);
    assert_eq!(std::fs::read(place.home.path().join("three.mycora")).expect("a file"), export_file());
    assert_eq!(place.calls(), ["export 3 false 2 `behind a`"]);

    std::fs::write(&part, &whole).expect("written");
    let other = stderr(&place.run_command(&["context", "export", "4", "three.mycora", "--force"], 2));
    assert!(other.contains("of context 3"), "{other}");
    std::fs::write(&part, "something else").expect("written");
    let other = stderr(&place.run_command(&["context", "export", "3", "three.mycora", "--force"], 2));
    assert!(other.contains("is no part of an export"), "{other}");
    std::fs::remove_file(&part).expect("removed");
    let early = stderr(&place.run_command(&["context", "export", "4", "four.mycora"], 1));
    assert!(early.contains("cut off after frame 2"), "{early}");
    assert!(!place.home.path().join("four.mycora").exists());

    // An earlier call got everything, and ended before it gave the file its name.
    let calls = place.calls().len();
    std::fs::write(&part, export_file()).expect("written");
    place.run_command(&["context", "export", "3", "three.mycora", "--force"], 0);
    assert_eq!(std::fs::read(place.home.path().join("three.mycora")).expect("a file"), export_file());
    assert_eq!(place.calls().len(), calls, "nothing is missing");
}

#[test]
fn an_import_that_breaks_off_continues_behind_what_was_taken() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    std::fs::write(place.home.path().join("three.mycora"), export_file()).expect("written");
    let flags = ["--running", "cancel", "--accept-actor", "1", "--accept-actor", "2"];
    let shown = stdout(&place.run_command(&[&["context", "import", "three.mycora"], &flags[..]].concat(), 0));
    assert!(shown.contains("context 3 is imported") && shown.contains("running: 2"), "{shown}");
    assert_eq!(place.calls(), ["import 2 [1, 2] 0", "import 2 [1, 2] 0"]);
    place.coordinator.recorded(|recorded| {
        assert_eq!(recorded.uploaded, [export_frames()[3].clone()], "the frame that was missing, alone");
    });
    let shown = stdout(&place.run_command(&["context", "import", "--abort", "3"], 0));
    assert!(shown.contains("is given up"), "{shown}");
    assert_eq!(place.calls()[2], "import 0 [] 3");
}

#[test]
fn files_that_are_cut_off_or_altered_are_refused_before_anything_is_sent() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let (file, frames) = (export_file(), export_frames());
    let mut altered = file.clone();
    altered[archive::HEADER.len() + frames[0].len() + 40] ^= 1;
    for (bytes, says) in [
        (&file[..file.len() - 1], "the export is cut off after frame 3"),
        (&altered[..], "frame 2 of the export is altered"),
        (b"something else", "this is no export of a context"),
        (b"", "the export is cut off after frame 0"),
    ] {
        std::fs::write(place.home.path().join("bad.mycora"), bytes).expect("written");
        let refused = stderr(&place.run_command(&["context", "import", "bad.mycora"], 2));
        assert!(refused.contains(says), "{refused}");
    }
    let missing = stderr(&place.run_command(&["context", "import", "missing.mycora"], 2));
    assert!(missing.contains("cannot read missing.mycora"), "{missing}");
    assert_eq!(place.calls(), [""; 0]);
}
