//! The figures of all rounds, as rows and as a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Load, Sample};
use crate::report::Report;
use crate::usage::Counts;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Reads one of the counts.
type Count = fn(&Counts) -> u64;

/// Counters of Redis, by their names in table and file.
const COUNTED: [(&str, Count); 6] = [
    ("scripts", |counts| counts.scripts),
    ("commands", |counts| counts.commands),
    ("reads", |counts| counts.reads),
    ("writes", |counts| counts.writes),
    ("bytes in", |counts| counts.bytes_in),
    ("bytes kept", |counts| counts.bytes_kept),
];

/// Medians of one load on one entrant.
struct Cell {
    figures: Vec<f64>,
    /// Microseconds of processor time for one unit, by process.
    micros: BTreeMap<String, f64>,
    /// For one unit, in the order of [`COUNTED`].
    counted: Vec<f64>,
}

pub(crate) struct Table {
    loads: Vec<Load>,
    entrants: Vec<&'static str>,
    /// Cells of each load, for each entrant.
    cells: Vec<Vec<Cell>>,
}

impl Table {
    /// From the rounds of each load on each entrant.
    pub(crate) fn new(loads: &[Load], entrants: Vec<&'static str>, samples: &[Vec<Vec<Sample>>]) -> Self {
        let of = |samples: &Vec<Vec<Sample>>| {
            loads.iter().zip(samples).map(|(load, rounds)| Cell::of(*load, rounds)).collect()
        };
        Self { loads: loads.to_vec(), entrants, cells: samples.iter().map(of).collect() }
    }

    /// Writes the medians as JSON.
    pub(crate) fn write(&self, path: &Path, rounds: usize) -> Result<(), Error> {
        let mut loads = serde_json::Map::new();
        for (at, load) in self.loads.iter().enumerate() {
            let of = |cells: &Vec<Cell>| cells[at].json(*load);
            let entrants = self.entrants.iter().map(|name| (*name).to_owned()).zip(self.cells.iter().map(of));
            loads.insert(load.name(), Value::Object(entrants.collect()));
        }
        let file = json!({"machine": crate::machine::describe(), "rounds": rounds, "loads": loads});
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        std::fs::write(path, serde_json::to_vec_pretty(&file)?)?;
        eprintln!("the figures are in {}", path.display());
        Ok(())
    }

    /// Adds rows to a report, the last entrant being what the others are held against where there is a peer.
    pub(crate) fn print(&self, report: &mut Report) {
        let peer = self.entrants.iter().position(|name| *name == "BullMQ");
        for (at, load) in self.loads.iter().enumerate() {
            report.title(&load.name());
            for (entrant, cells) in self.entrants.iter().zip(&self.cells) {
                let against = peer.filter(|peer| self.entrants[*peer] != *entrant);
                let against = against.map(|peer| &self.cells[peer][at]);
                report.line(entrant, &cells[at].figures_line(*load, against));
                report.line("", &cells[at].used_line(*load));
            }
        }
    }
}

impl Cell {
    fn of(load: Load, rounds: &[Sample]) -> Self {
        let units = f64::from(load.units().1);
        let figures = (0..load.figures().len())
            .map(|at| middle(rounds.iter().filter_map(|sample| sample.figures.get(at).copied())))
            .collect();
        let names: BTreeSet<&String> =
            rounds.iter().flat_map(|sample| sample.used.processor.keys()).collect();
        let micros = |name: &String| {
            let spent = rounds.iter().map(|sample| sample.used.processor.get(name).map_or(0.0, micros));
            middle(spent) / units
        };
        #[expect(clippy::cast_precision_loss, reason = "counts of one round are far below 2^52")]
        let counted =
            |count: Count| middle(rounds.iter().map(|sample| count(&sample.used.redis) as f64)) / units;
        Self {
            figures,
            micros: names.into_iter().map(|name| (name.clone(), micros(name))).collect(),
            counted: COUNTED.iter().map(|(_, count)| counted(*count)).collect(),
        }
    }

    fn json(&self, load: Load) -> Value {
        let figures = load.figures().iter().zip(&self.figures);
        let figures = figures.map(|((name, unit), figure)| (format!("{name} {unit}"), json!(figure)));
        let counted = COUNTED.iter().zip(&self.counted);
        let counted = counted.map(|((name, _), count)| ((*name).to_owned(), json!(count)));
        json!({
            "figures": Value::Object(figures.collect()),
            "unit": load.units().0,
            "processor µs": self.micros,
            "redis": Value::Object(counted.collect()),
        })
    }

    /// The figures, and what they are against a peer: above 1 is better than that.
    fn figures_line(&self, load: Load, peer: Option<&Self>) -> String {
        let one = |at: usize| {
            let ((name, unit), figure) = (load.figures()[at], self.figures[at]);
            let times = peer.map_or_else(String::new, |peer| {
                let ratio =
                    if load.is_rate() { figure / peer.figures[at] } else { peer.figures[at] / figure };
                format!(" ({ratio:.2} of the peer's speed)")
            });
            let digits = if figure < 10.0 { 2 } else { usize::from(figure < 1000.0) };
            format!("{name} {figure:.digits$} {unit}{times}")
        };
        (0..self.figures.len()).map(one).collect::<Vec<_>>().join(", ")
    }

    fn used_line(&self, load: Load) -> String {
        let spent = self.micros.iter().map(|(name, micros)| format!("{name} {micros:.0}"));
        let counted = COUNTED.iter().zip(&self.counted).map(|((name, _), count)| {
            let digits = usize::from(*count < 100.0);
            format!("{name} {count:.digits$}")
        });
        let unit = load.units().0;
        format!(
            "of a {unit}: µs of processor {}; Redis {}",
            spent.collect::<Vec<_>>().join(", "),
            counted.collect::<Vec<_>>().join(", ")
        )
    }
}

fn micros(time: &Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn middle(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Used;

    fn sample(figure: f64, suite: u64, scripts: u64) -> Sample {
        let processor = BTreeMap::from([("suite".to_owned(), Duration::from_millis(suite))]);
        let redis = Counts { scripts, ..Counts::default() };
        Sample { figures: vec![figure], used: Used { processor, redis } }
    }

    #[test]
    fn rows_are_medians_for_one_unit() {
        let load = Load::Single { flows: 100, at_once: 4 };
        let rounds = [sample(30.0, 20, 500), sample(10.0, 90, 700), sample(20.0, 40, 600)];
        let ours = Cell::of(load, &rounds);
        assert_eq!(ours.figures, [20.0]);
        assert_eq!(ours.micros["suite"], 400.0);
        assert_eq!(ours.counted[0], 6.0);
        let peer = Cell::of(load, &[sample(40.0, 10, 100)]);
        assert_eq!(ours.figures_line(load, Some(&peer)), "flows 20.0 /s (0.50 of the peer's speed)");
        let chain = Load::Chain { length: 10, runs: 10 };
        assert_eq!(
            Cell::of(chain, &rounds).figures_line(chain, Some(&peer)),
            "whole 20.0 ms (2.00 of the peer's speed)"
        );
        assert!(ours.used_line(load).starts_with("of a flow: µs of processor suite 400; Redis scripts 6.0"));
    }
}
