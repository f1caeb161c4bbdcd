//! Jobs that name a job kept at the coordinator by its number, instead of their own script.

use yaml::{YamlEntry, YamlFields};

use super::{FlowFieldPath, FlowFileReader};
use crate::keys::STORED_JOB_KEYS;

impl FlowFileReader<'_> {
    /// The number of the kept job that a job of the flow names; absent when it names none.
    pub(super) fn created_job(
        &mut self,
        job: &YamlEntry,
        fields: &YamlFields<'_>,
        at: FlowFieldPath<'_>,
    ) -> Option<u32> {
        let entry = fields.get("created_job")?;
        let number = self.number(entry, at, "created_job_id");
        if number == Some(0) {
            self.problem(entry.value.place, "`created_job` is the number of a job, from 1 on, not 0");
        }
        for (key, own) in STORED_JOB_KEYS.iter().filter_map(|key| Some((key, fields.get(key)?))) {
            let (name, line) = (&job.key, entry.place.line);
            self.problem(
                own.place,
                format!(
                    "the job `{name}` names a kept job in line {line} (`created_job`), which says its own `{key}`; keep \
                     one of them"
                ),
            );
        }
        // An invalid number has been reported already, so any valid one is a harmless substitute.
        Some(number.filter(|number| *number != 0).unwrap_or(1))
    }
}
