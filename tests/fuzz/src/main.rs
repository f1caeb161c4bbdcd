//! Runs targets on a stable compiler: `mycora-fuzz TARGET|all COUNT [SEED]`. It mutates what is kept, and sees nothing of what
//! the code does with it.
//!
//! `mycora-fuzz seeds DIR` writes the seeds of every target into a folder of its own in DIR, for libFuzzer;
//! `mycora-fuzz list` names the targets.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuzz::corpus::Corpus;
use fuzz::mutation::{Random, mutate};
use fuzz::{TARGETS, Target, Verdict};

/// An input is not longer.
const BYTES_MAX: usize = 64 * 1024;

/// Input that is being read, kept so that a failure can be reported with it.
static CURRENT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["list"] => {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            Ok(())
        }
        ["seeds", dir] => TARGETS.iter().try_for_each(|target| write_seeds(target, Path::new(dir))),
        [name, count] | [name, count, _] => {
            let (count, seed) = (count.parse(), args.get(2).unwrap_or(&"1").parse());
            let targets: Vec<_> =
                TARGETS.iter().filter(|target| *name == "all" || *name == target.name).collect();
            match (targets.is_empty(), count, seed) {
                (false, Ok(count), Ok(seed)) => {
                    targets.iter().try_for_each(|target| run(target, count, seed))
                }
                _ => return usage(),
            }
        }
        _ => return usage(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mycora-fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("mycora-fuzz TARGET|all COUNT [SEED] | seeds DIR | list");
    ExitCode::from(2)
}

fn write_seeds(target: &Target, dir: &Path) -> io::Result<()> {
    let folder = dir.join(target.name);
    std::fs::create_dir_all(&folder)?;
    let mut seeds = (target.seeds)().into_iter().enumerate();
    seeds.try_for_each(|(i, seed)| std::fs::write(folder.join(format!("seed-{i}")), seed))
}

fn run(target: &'static Target, count: u64, seed: u64) -> io::Result<()> {
    let corpus = Corpus::read(target)?;
    std::panic::set_hook(Box::new(move |panic| {
        let input = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let path = std::env::temp_dir().join(format!("mycora-fuzz-{}", target.name));
        let kept = std::fs::write(&path, input.as_slice());
        eprintln!("{}: {panic}\nThe input is in {} ({kept:?})", target.name, path.display());
    }));
    let (mut accepted, mut slowest, begin) = (0_u64, Duration::ZERO, Instant::now());
    let mut random = Random::new(seed);
    for i in 0..count {
        // First what is kept, as it is.
        let mut input = match usize::try_from(i).ok().and_then(|i| corpus.inputs().get(i)) {
            Some(kept) => kept.clone(),
            None => {
                let mut input = corpus.pick(&mut random).to_vec();
                let other = corpus.pick(&mut random);
                mutate(target, &mut input, other, BYTES_MAX, &mut random);
                input
            }
        };
        std::mem::swap(&mut *CURRENT.lock().unwrap_or_else(PoisonError::into_inner), &mut input);
        let before = Instant::now();
        let input = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if (target.run)(&input) == Verdict::Accepted {
            accepted += 1;
        }
        slowest = slowest.max(before.elapsed());
    }
    let (refused, secs) = (count - accepted, begin.elapsed().as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let speed = count as f64 / secs;
    println!(
        "{}: {count} inputs of seed {seed}: {accepted} accepted, {refused} refused, {speed:.0}/s, the slowest {} ms",
        target.name,
        slowest.as_millis()
    );
    Ok(())
}
