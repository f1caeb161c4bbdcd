//! Dead letters: read, applied, removed.

use ::rpc::{Error, Page};
use model::{CorrelationId, SagaName, TenantId, Violations};
use proto::convert::saga::{name, tenant};
use proto::required::missing;
use proto::v1::{
    GetSagaDeadLetterRequest, GetSagaDeadLetterResponse, ListSagaDeadLettersRequest,
    ListSagaDeadLettersResponse, PurgeSagaDeadLettersRequest, PurgeSagaDeadLettersResponse,
    RedriveSagaDeadLettersRequest, RedriveSagaDeadLettersResponse, SagaDeadLetter,
};
use store::Versioned;
use tonic::Status;
use workflow::key::Table;
use workflow::{Key, Lane};

use super::lists::{Asked, Listed, PageOf, Stretch, failed, page};
use super::wire;
use super::{Api, Principal, unimplemented};
use crate::lane::letter_name::LetterName;
use crate::reads::{Letter, ReadError, Reads, read};
use crate::sagas::LetterRow;

/// The kind of a reason in a filter, in bytes.
const CODE_BYTES_MAX: usize = 64;

/// NOT_FOUND of a letter.
pub(super) fn no_letter(key: &str) -> Status {
    // The text is whatever the caller has sent.
    Error::not_found(format!("the dead letter {:?}", key.chars().take(200).collect::<String>())).into()
}

/// What letters are asked for.
#[derive(Debug)]
struct Filter {
    saga: Option<SagaName>,
    correlation: Option<CorrelationId>,
    /// Empty for every one.
    code: String,
}

/// Letters in lists.
struct Letters<'a> {
    reads: &'a Reads,
    tenant: &'a TenantId,
    filter: &'a Filter,
}

impl Letters<'_> {
    fn matches(&self, row: &LetterRow) -> bool {
        let Filter { correlation, code, .. } = self.filter;
        (code.is_empty() || *code == row.letter.code)
            && correlation.as_ref().is_none_or(|wanted| row.correlation.as_ref() == Some(wanted))
    }
}

impl Listed for Letters<'_> {
    type Entry = SagaDeadLetter;

    async fn entries(
        &self,
        lane: &Lane,
        rows: &[(Key, Versioned)],
    ) -> Result<Vec<Option<SagaDeadLetter>>, ReadError> {
        let letters: Vec<LetterRow> =
            rows.iter().map(|(key, row)| read(lane, key, row)).collect::<Result<_, ReadError>>()?;
        let behind = self.reads.behind(lane, &letters).await?;
        let shown = rows.iter().zip(letters).zip(behind).map(|(((key, _), row), behind)| {
            let name = LetterName { lane: lane.clone(), key: key.clone() };
            let is_wanted = self.matches(&row);
            is_wanted.then(|| wire::letter::letter(self.tenant, &Letter { name, row, behind }, false))
        });
        Ok(shown.collect())
    }
}

/// Lists dead letters.
pub(super) async fn list(
    api: &Api,
    caller: &Principal,
    request: ListSagaDeadLettersRequest,
) -> Result<ListSagaDeadLettersResponse, Status> {
    let mut violations = Violations::new();
    let ListSagaDeadLettersRequest { tenant_id, saga, correlation_id, code, page_size, page_token } = request;
    let tenant = tenant(&tenant_id, api.has_tenants(), &mut violations);
    if saga.is_empty() && !correlation_id.is_empty() {
        violations.add("saga", "is missing: a correlation is one within a saga");
    }
    if code.len() > CODE_BYTES_MAX {
        violations.add("code", format!("has at most {CODE_BYTES_MAX} bytes"));
    }
    let filter = Filter {
        saga: name("saga", &saga, &mut violations),
        correlation: name("correlation_id", &correlation_id, &mut violations),
        code,
    };
    let asked = Page::parse(page_size, &page_token, &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    let reads = api.reads();
    let asked = Asked::new(asked, PageOf::Letters, caller, &tenant, &filter)?;
    let range = filter.correlation.as_ref().map_or_else(|| Table::Dead.range(), Key::dead_of);
    let lanes = match (&filter.saga, &filter.correlation) {
        (Some(saga), Some(correlation)) => reads.lane_of(&tenant, saga, correlation).into_iter().collect(),
        (Some(saga), None) => reads.saga_lanes(&tenant, Some(saga)),
        (None, _) => [reads.saga_lanes(&tenant, None), reads.effect_lanes(&tenant, None)].concat(),
    };
    let stretches: Vec<_> = lanes.into_iter().map(|lane| Stretch { lane, range: range.clone() }).collect();
    let listed = Letters { reads: &reads, tenant: &tenant, filter: &filter };
    let (dead_letters, next_page_token) = page(&reads, &asked, &stretches, &listed).await?;
    Ok(ListSagaDeadLettersResponse { dead_letters, next_page_token })
}

/// Reads a dead letter.
pub(super) async fn get(
    api: &Api,
    caller: &Principal,
    request: GetSagaDeadLetterRequest,
) -> Result<GetSagaDeadLetterResponse, Status> {
    let mut violations = missing(&request);
    let GetSagaDeadLetterRequest { tenant_id, key } = request;
    let tenant = tenant(&tenant_id, api.has_tenants(), &mut violations);
    let tenant = violations.into_result(tenant).map_err(Error::from)?;
    api.read(caller, &tenant).await?;
    // A text that is no name is the name of nothing.
    let name = LetterName::parse(&key, &tenant).ok_or_else(|| no_letter(&key))?;
    let letter = api.reads().letter(&name).await.map_err(failed)?.ok_or_else(|| no_letter(&key))?;
    Ok(GetSagaDeadLetterResponse { dead_letter: Some(wire::letter::letter(&tenant, &letter, true)) })
}

/// Applies dead letters.
pub(super) async fn redrive(
    _: &Api,
    _: &Principal,
    _: RedriveSagaDeadLettersRequest,
) -> Result<RedriveSagaDeadLettersResponse, Status> {
    Err(unimplemented("RedriveSagaDeadLetters"))
}

/// Removes dead letters.
pub(super) async fn purge(
    _: &Api,
    _: &Principal,
    _: PurgeSagaDeadLettersRequest,
) -> Result<PurgeSagaDeadLettersResponse, Status> {
    Err(unimplemented("PurgeSagaDeadLetters"))
}
