//! Arguments with which `deploy/` starts `mycora`.

use std::collections::BTreeMap;

use clap::Parser as _;
use mycora_cli::cli::{Cli, CliCommand};

const UNIT: &str = include_str!("../../../../deploy/systemd/mycora.service");

#[test]
fn the_unit_of_the_system_starts_what_there_is_and_starts_it_again() {
    let lines = UNIT.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    let settings: BTreeMap<&str, &str> = lines.collect();
    let cli = Cli::try_parse_from(settings["ExecStart"].split(' ')).unwrap_or_else(|error| panic!("{error}"));
    let CliCommand::Up(args) = cli.command else { panic!("{:?} is not `up`", cli.command) };
    let data = args.data.expect("a directory");
    assert_eq!(data.to_str(), Some(&*format!("/var/lib/{}", settings["StateDirectory"])));
    // Others pass through, and only its owner writes: it is taken as a data directory as it is.
    assert_eq!(settings["StateDirectoryMode"], "0711");
    assert_eq!((settings["Restart"], settings["StartLimitIntervalSec"]), ("on-failure", "0"));
    // Redis is ended by `mycora`, after its last client.
    assert_eq!(settings["KillMode"], "mixed");
    assert_eq!(settings["Delegate"], "yes");
}
