//! Isolation that this machine supports, and that a script runs at all.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use model::Isolation;
use sandbox::{Cgroups, Confinement, IsolationLayers, IsolationProbe, SandboxLauncher};

use crate::setup::{SandboxTestDir, launcher};

#[tokio::test]
async fn every_layer_stands_here_and_each_can_be_taken_away() {
    let place = SandboxTestDir::new();
    let launcher = launcher();
    let groups = Cgroups::make("mycora-test-standing");
    let probe = |layers| IsolationProbe {
        launcher: &launcher,
        layers,
        cgroups: groups.as_ref().map_err(ToString::to_string),
        owner: Ok(1_900_000_000),
        dir: place.root.path(),
    };
    let support = probe(IsolationLayers::default()).run().await.unwrap();
    println!("{support:?}");
    if support.missing.is_empty() {
        assert_eq!(support.level, Isolation::Contained);
        assert_eq!(support.layers.len(), 9, "{support:?}");
    }
    let none = IsolationLayers { files: false, syscalls: false, cgroup: false, owner: false, broker: false };
    let bare = probe(none).run().await.unwrap();
    assert_eq!((bare.level, bare.layers), (Isolation::Basic, vec!["session".to_owned()]));
    assert_eq!(bare.missing.len(), 8, "each with its reason");
    let unbounded = probe(IsolationLayers { cgroup: false, owner: false, ..IsolationLayers::default() })
        .run()
        .await
        .unwrap();
    assert_eq!(unbounded.level, support.level.min(Isolation::Confined));
    // Without a user of its own a script could change the modes of what is its user's, unless they are kept.
    let open = IsolationLayers { cgroup: false, owner: false, broker: false, ..IsolationLayers::default() };
    assert_eq!(probe(open).run().await.unwrap().level, Isolation::Basic);
}

/// A program below `/root` for example, which scripts' users cannot pass.
#[tokio::test]
async fn every_layer_stands_where_other_users_do_not_reach_the_program() {
    let (place, closed) = (SandboxTestDir::new(), tempfile::tempdir().unwrap());
    std::fs::set_permissions(closed.path(), Permissions::from_mode(0o700)).unwrap();
    let there = closed.path().join("launcher");
    std::fs::copy(&launcher().program, &there).unwrap();
    let mut layers = Vec::new();
    for launcher in [launcher(), SandboxLauncher::at(there)] {
        let probe = IsolationProbe {
            launcher: &launcher,
            layers: IsolationLayers { cgroup: false, ..IsolationLayers::default() },
            cgroups: Err("none is tried".to_owned()),
            owner: Ok(1_900_000_000),
            dir: place.root.path(),
        };
        layers.push(probe.run().await.unwrap().layers);
    }
    assert_eq!(layers[0], layers[1]);
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(layers[0].contains(&"own-uid".to_owned()), is_root, "{layers:?}");
}

#[tokio::test]
async fn a_script_ends_as_it_does_alone() {
    let place = SandboxTestDir::new();
    let outcome = place.shell("echo out; echo err >&2; exit 3", place.confined()).await;
    assert_eq!((outcome.code, outcome.output.as_str()), (Some(3), "out\nerr\n"), "{outcome:?}");
    let outcome = place.shell("kill -9 $$", Confinement::default()).await;
    assert_eq!((outcome.code, outcome.signal), (None, Some(9)));
    let outcome = place.run("/nowhere/program", &[], Confinement::default()).await;
    assert_eq!(outcome.refused.map(|(layer, _)| layer).as_deref(), Some("exec"));
    let outcome = place.shell("sleep 600 & exec sleep 0", Confinement::default()).await;
    assert!(outcome.left && outcome.ended.len() == 1, "{outcome:?}");
}
