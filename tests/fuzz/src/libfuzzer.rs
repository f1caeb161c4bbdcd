//! The front for libFuzzer: `libfuzzer!(name)` is all that stands in `fuzz_targets/<name>.rs`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mutation::{self, Random};
use crate::{Target, Verdict};

/// How often it reports the outcomes of the inputs.
const REPORT_EVERY: u64 = 50_000;

static ACCEPTED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Makes a program of a target.
#[macro_export]
macro_rules! libfuzzer {
    ($target:ident) => {
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::libfuzzer::run(
            &$crate::targets::$target::TARGET,
            data
        ));
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, bytes_max: usize, seed: u32| {
            $crate::libfuzzer::mutate(&$crate::targets::$target::TARGET, data, size, bytes_max, seed)
        });
    };
}

/// Reads an input, and counts what became of it.
pub fn run(target: &Target, data: &[u8]) {
    let counter = match (target.run)(data) {
        Verdict::Accepted => &ACCEPTED,
        Verdict::Refused => &REFUSED,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    let (accepted, refused) = (ACCEPTED.load(Ordering::Relaxed), REFUSED.load(Ordering::Relaxed));
    if (accepted + refused).is_multiple_of(REPORT_EVERY) {
        eprintln!("{}: {accepted} accepted, {refused} refused", target.name);
    }
}

/// Changes an input: every other time as libFuzzer does, else as we do, who know the target's words.
pub fn mutate(target: &Target, data: &mut [u8], size: usize, bytes_max: usize, seed: u32) -> usize {
    static SEEDS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let mut random = Random::new(seed.into());
    if random.below(2) == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, bytes_max);
    }
    let seeds = SEEDS.get_or_init(target.seeds);
    let other = &seeds[random.below(seeds.len())];
    // What libFuzzer collects is mostly refused, each in a way of its own. Now and then it begins with something good again.
    let mut input = if random.below(4) == 0 { other.clone() } else { data[..size].to_vec() };
    mutation::mutate(target, &mut input, other, bytes_max, &mut random);
    data[..input.len()].copy_from_slice(&input);
    input.len()
}
