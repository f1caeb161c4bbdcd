//! README.md and specs/clients.md: their blocks are run as they stand there, on a terminal, and the output that the pages show
//! is compared with what is printed.

mod block;
mod command_table;
mod screen;

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::pages::{read, root};

use self::block::{Block, blocks};
use crate::detached::DetachedFixture;
use crate::{stderr, stdout};

/// The size of the terminal: no path of a test is too long for a line.
const COLUMNS: usize = 240;
const ROWS: usize = 50;
/// Directory of the reader, as the pages assume, and the port that is free there.
const READER: &str = "/src/mycora";
const PORT: u16 = 7700;
/// Runs a command on a terminal of its own, passes on what is shown there, and ends as it does.
const ON_A_TERMINAL: &str =
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
/// Mark shown before the output of the block of a line.
const MARK: &str = "@@ block ";
/// Stands in for cargo: the requested programs were built with this test, and lie where they would be.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
  'build --workspace --bin mycora') test -x target/debug/mycora ;;
  'build --release -p mycora') test -x target/release/mycora ;;
  'install --path services/mycora --locked') ;;
  *) echo "nobody has tried: cargo $*" >&2; exit 1 ;;
esac
"#;
/// Stands in for make: `test` is what runs this, and `dist` runs in `dist.rs`; both have to be targets. The others are made.
const MAKE: &str = r#"#!/bin/sh
case "$*" in
  test | dist) grep -q "^$1: ## " Makefile ;;
  *) exec '@MAKE@' "$@" ;;
esac
"#;
/// Programs that not every machine has. `.ci/run` gets them, and runs every line of all pages that begins with one.
const SELDOM: [&str; 2] = ["grpcurl", "buf"];
/// Programs that get packages from elsewhere before they begin. `.ci/run` runs them.
const CLIENTS: &str = "tests/clients/";

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|found| found.is_file())
}

/// Sets up what a page assumes of its reader: a checkout with what is built in it.
fn furnish(here: &Path) {
    for dir in ["stand-in", "target/debug", "target/release"] {
        std::fs::create_dir_all(here.join(dir)).expect("a directory");
    }
    let link = |from: &Path, to: &str| symlink(from, here.join(to)).expect("a link");
    for program in ["target/debug/mycora", "target/release/mycora", "stand-in/mycora"] {
        link(Path::new(env!("CARGO_BIN_EXE_mycora")), program);
    }
    for checked_in in ["Makefile", "deploy"] {
        link(&root().canonicalize().expect("a checkout").join(checked_in), checked_in);
    }
    let make = on_path("make").expect("make, which the README asks for");
    let make = MAKE.replace("@MAKE@", &make.display().to_string());
    for (name, script) in [("cargo", CARGO), ("make", &make)] {
        let path = here.join("stand-in").join(name);
        std::fs::write(&path, script).expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
    }
}

/// Why a block is not run here. Those that are left out run in `.ci/run`.
fn left_out(block: &Block) -> Option<String> {
    let program = block.text.split([' ', '\n']).next().unwrap_or_default();
    if program.starts_with(CLIENTS) {
        let ci = read(".ci/run");
        for line in block.text.lines() {
            let client = line.split(' ').next().unwrap_or_default();
            assert!(ci.contains(&format!("client\" {client} ")), "nobody runs `{line}`");
        }
        return Some(format!("{CLIENTS}*/run get packages from elsewhere"));
    }
    let is_absent = SELDOM.contains(&program) && on_path(program).is_none();
    is_absent.then(|| format!("{program} is not here"))
}

/// The blocks of a page as one script, which shows a mark before the output of each, and ends with the first that fails.
fn script(here: &Path, port: u16, run: &[&Block]) -> PathBuf {
    let mut all = format!("set -eu\nstty cols {COLUMNS} rows {ROWS}\n");
    for block in run {
        let name = format!("block-{}.sh", block.line);
        let text = block.text.replace(&format!(":{PORT}"), &format!(":{port}"));
        std::fs::write(here.join(&name), text).expect("written");
        all.push_str(&format!("echo '{MARK}{}'\n. ./{name}\n", block.line));
    }
    let path = here.join("page.sh");
    std::fs::write(&path, all).expect("written");
    path
}

/// Returns what a terminal shows after these blocks ran, for the reader that the page has in mind.
fn printed(page: &str, run: &[&Block]) -> String {
    let place = DetachedFixture::new();
    let here = place.dir.path();
    furnish(here);
    let mut terminal = Command::new("python3");
    place.settle(&mut terminal).env("TERM", "xterm").env("NO_COLOR", "1");
    terminal.env("TMPDIR", std::env::temp_dir());
    let path = format!("{}:{}", here.join("stand-in").display(), std::env::var("PATH").unwrap_or_default());
    terminal.env("PATH", path).args(["-c", ON_A_TERMINAL, "bash"]).arg(script(here, place.port, run));
    let ended = terminal.output().expect("python3 starts");
    let shown = screen::shown(&stdout(&ended), COLUMNS).join("\n");
    assert!(ended.status.success(), "{page}: a block failed:\n{shown}\n{}", stderr(&ended));
    let dir = here.canonicalize().expect("it is there");
    let shown = shown.replace(&dir.display().to_string(), READER);
    shown.replace(&format!(":{}", place.port), &format!(":{PORT}"))
}

/// Runs the shell blocks of a page in their order, and compares what follows them.
fn check(page: &str) {
    let text = read(page);
    let blocks = blocks(&text);
    let is_run = |block: &&Block| {
        let reason = left_out(block);
        if let Some(reason) = &reason {
            eprintln!("left out: the block at {page}:{}, since {reason}", block.line);
        }
        reason.is_none()
    };
    let run: Vec<&Block> = blocks.iter().filter(|block| block.language == "sh").filter(is_run).collect();
    let shown = printed(page, &run);
    let mut compared = 0;
    for pair in blocks.windows(2).filter(|pair| pair[1].language == "text") {
        let [command, output_block] = pair else { continue };
        assert_eq!(command.language, "sh", "{page}:{}: nothing prints this", output_block.line);
        let mark = format!("{MARK}{}\n", command.line);
        let Some((_, printed)) = shown.split_once(&mark) else { continue };
        let printed = printed.split(MARK).next().unwrap_or_default();
        let is_right = block::is_what_was_printed(&output_block.text, printed);
        assert!(is_right, "{page}:{}: printed was\n{printed}", output_block.line);
        compared += 1;
    }
    assert!(compared > 0, "{page} does not say what its commands print");
}

#[test]
fn the_readme_works_as_it_stands() {
    check("README.md");
}

#[test]
fn the_page_for_clients_works_as_it_stands() {
    check("specs/clients.md");
}

#[test]
fn every_block_has_a_known_language() {
    // What is in other languages is compared with programs by `examples` of tests/tidy; what has none is drawn.
    let known = ["sh", "text", "python", "go", "js", ""];
    for page in ["README.md", "specs/clients.md"] {
        let text = read(page);
        let stray: Vec<_> = blocks(&text)
            .into_iter()
            .filter(|block| !known.contains(&&*block.language))
            .map(|block| format!("{page}:{}: nobody runs {}", block.line, block.language))
            .collect();
        assert!(stray.is_empty(), "{}", stray.join("\n"));
    }
}
