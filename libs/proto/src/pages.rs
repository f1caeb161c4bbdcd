//! Answers that end at the bytes of a page as well as at their count.

use model::limits;
use prost::Message;

/// The first of these, as far as they make a page; one at least, where there is one.
///
/// # Errors
/// The first that there is among them.
pub fn first<M: Message, E>(all: impl Iterator<Item = Result<M, E>>) -> Result<Vec<M>, E> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for next in all {
        let next = next?;
        bytes += next.encoded_len();
        if !page.is_empty() && bytes > limits::PAGE_BYTES_MAX {
            break;
        }
        page.push(next);
    }
    Ok(page)
}

/// All of these, in as many parts as they make. A part ends at this count, too.
#[must_use]
pub fn parts<M: Message>(all: impl Iterator<Item = M>, count_max: usize) -> Vec<Vec<M>> {
    let mut parts: Vec<Vec<M>> = Vec::new();
    let mut room = 0;
    for next in all {
        let bytes = next.encoded_len();
        match parts.last_mut() {
            Some(part) if bytes <= room && part.len() < count_max => {
                part.push(next);
                room -= bytes;
            }
            _ => {
                parts.push(vec![next]);
                room = limits::PAGE_BYTES_MAX.saturating_sub(bytes);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::v1::ReportPresenceRequest;

    fn entry(bytes: usize) -> ReportPresenceRequest {
        ReportPresenceRequest { address: "a".repeat(bytes), ..ReportPresenceRequest::default() }
    }

    #[test]
    fn pages_end_at_their_bytes_and_have_one_entry_at_least() {
        let half = limits::PAGE_BYTES_MAX / 2;
        let sizes = [half - 100, half - 100, 300, 3 * half, 1, 2];
        let lengths: Vec<usize> = parts(sizes.into_iter().map(entry), 10).iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 1, 1, 2]);
        let lengths: Vec<usize> = parts([1; 5].into_iter().map(entry), 2).iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 2, 1]);
        assert!(parts(std::iter::empty::<ReportPresenceRequest>(), 2).is_empty());
        let all = |sizes: &[usize]| {
            first(sizes.iter().map(|size| Ok::<_, ()>(entry(*size)))).map(|page| page.len())
        };
        assert_eq!((all(&sizes), all(&[3 * half, 1]), all(&[])), (Ok(2), Ok(1), Ok(0)));
        assert_eq!(first([Ok(entry(1)), Err(()), Ok(entry(1))].into_iter()), Err(()));
    }
}
