//! Every target, over its corpus and some ten thousand mutations of it, on whatever compiler is at hand.
//!
//! `MYCORA_FUZZ_SEED` and `MYCORA_FUZZ_COUNT` set where the mutations begin and how many there are.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fuzz::corpus::Corpus;
use fuzz::mutation::{Random, mutate};
use fuzz::{Target, Verdict};

/// Mutations of each target.
const COUNT: u64 = 10_000;
/// Where they begin by default.
const SEED: u64 = 6;
/// An input is not longer.
const BYTES_MAX: usize = 8 * 1024;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

fn replay(name: &str) {
    let target = Target::find(name).expect("it is in the table");
    let (seed, count) = (setting("MYCORA_FUZZ_SEED", SEED), setting("MYCORA_FUZZ_COUNT", COUNT));
    let corpus = Corpus::read(target).expect("the corpus is read");
    let (mut accepted, mut refused) = (0_u64, 0_u64);
    let mut feed = |input: &[u8], what: &dyn Fn() -> String| match catch_unwind(AssertUnwindSafe(|| {
        (target.run)(input)
    })) {
        Ok(Verdict::Accepted) => accepted += 1,
        Ok(Verdict::Refused) => refused += 1,
        Err(_) => panic!("{name}, {}: {:?}", what(), String::from_utf8_lossy(input)),
    };
    for (i, input) in corpus.inputs().iter().enumerate() {
        feed(input, &|| format!("input {i}"));
    }
    let mut random = Random::new(seed);
    for i in 0..count {
        let mut input = corpus.pick(&mut random).to_vec();
        let other = corpus.pick(&mut random);
        mutate(target, &mut input, other, BYTES_MAX, &mut random);
        feed(&input, &|| format!("mutation {i} of seed {seed}"));
    }
    println!("{name}: {} inputs, seed {seed}: {accepted} accepted, {refused} refused", corpus.inputs().len());
    assert!(accepted > 0 && refused > 0, "{name} reached only one of acceptance and refusal");
}

macro_rules! replays {
    ($($(#[$condition:meta])? $name:ident)+) => {
        $(
            $(#[$condition])?
            #[test]
            fn $name() {
                replay(stringify!($name));
            }
        )+

        /// A target without a test, or without a front for libFuzzer, is found.
        #[test]
        fn every_target_is_run() {
            let tested = [$(stringify!($name)),+];
            for target in fuzz::TARGETS {
                assert!(tested.contains(&target.name), "{} has no test", target.name);
                let front = format!("{}/fuzz_targets/{}.rs", env!("CARGO_MANIFEST_DIR"), target.name);
                assert!(std::path::Path::new(&front).exists(), "{front} is missing");
            }
        }
    };
}

replays! {
    archive_frame token envelope said succession job_signature letter_signature page_token
    flow_file
    template expression json_rpc frame storage_record raw_jobs queue_record engine_frame script
}
