//! Sorting by any comparison function: a contradictory one yields some order of the same elements, and no panic.
//!
//! The standard library's sort may panic on such a function. This one is a merge sort; it checks at the comparisons whether the
//! script has to end, and then leaves the list as it was.

use std::cmp::Ordering;

use rhai::{
    Array, Dynamic, Engine, EvalAltResult, FLOAT, FnPtr, INT, ImmutableString, NativeCallContext, Position,
};

use super::EngineLimits;
use super::connection::EngineConnection;
use super::functions::EvalResult;

/// Comparisons between two checks of the script's limits.
const COMPARISONS_BETWEEN_LOOKS: u64 = 1024;

/// Checks that a long sort makes between comparisons. Clones share them.
#[derive(Clone)]
struct SortChecks {
    limits: EngineLimits,
    line: EngineConnection,
}

impl SortChecks {
    /// Ends the script if it has to end, and sends printed text that has waited long enough.
    fn check(&self) -> EvalResult<()> {
        self.line.flush_if_due();
        self.limits.spend(COMPARISONS_BETWEEN_LOOKS)
    }
}

pub(super) fn register(engine: &mut Engine, limits: &EngineLimits, line: &EngineConnection) {
    let checks = SortChecks { limits: limits.clone(), line: line.clone() };
    let sort = |reverse| {
        let checks = checks.clone();
        move |list: &mut Array| -> EvalResult<()> {
            let sorted = by_value(list, reverse, &checks)?;
            *list = sorted;
            Ok(())
        }
    };
    let order = |reverse| {
        let checks = checks.clone();
        move |list: &mut Array| by_value(list, reverse, &checks)
    };
    engine.register_fn("sort", sort(false)).register_fn("sort_desc", sort(true));
    engine.register_fn("order", order(false)).register_fn("order_desc", order(true));
    for name in ["sort", "sort_by"] {
        let checks = checks.clone();
        engine.register_fn(
            name,
            move |context: NativeCallContext, list: &mut Array, order: FnPtr| -> EvalResult<()> {
                let sorted = by_function(&context, list, &order, &checks)?;
                *list = sorted;
                Ok(())
            },
        );
    }
    for name in ["order", "order_by"] {
        let checks = checks.clone();
        engine.register_fn(name, move |context: NativeCallContext, list: &mut Array, order: FnPtr| {
            by_function(&context, list, &order, &checks)
        });
    }
}

fn by_function(
    context: &NativeCallContext,
    list: &Array,
    order: &FnPtr,
    checks: &SortChecks,
) -> EvalResult<Array> {
    merge_sort(list, checks, |one, other| {
        let order_result = order.call_raw(context, None, [one.clone(), other.clone()])?;
        let number = order_result
            .as_int()
            .or_else(|_| order_result.as_bool().map(|before| if before { -1 } else { 1 }));
        // A result that is neither a number nor a boolean counts as equal.
        Ok(number.map_or(Ordering::Equal, |number| number.cmp(&0)))
    })
}

fn by_value(list: &Array, reverse: bool, checks: &SortChecks) -> EvalResult<Array> {
    let kind = match list.first() {
        Some(first) if list.len() > 1 => first,
        _ => return Ok(list.clone()),
    };
    let unsorted = |why: String| EvalAltResult::ErrorFunctionNotFound(why, Position::NONE);
    if list.iter().any(|item| item.type_id() != kind.type_id()) {
        return Err(unsorted("elements of different types cannot be sorted".to_owned()).into());
    }
    if kind.is_unit() {
        return Ok(list.clone());
    }
    if compare(kind, kind).is_none() {
        return Err(unsorted(format!("elements of {} cannot be sorted", kind.type_name())).into());
    }
    merge_sort(list, checks, |one, other| {
        let order = compare(one, other).unwrap_or(Ordering::Equal);
        Ok(if reverse { order.reverse() } else { order })
    })
}

/// Compares two values of one type; returns none for a type that has no order. Negative NaNs come first, positive ones
/// last.
fn compare(one: &Dynamic, other: &Dynamic) -> Option<Ordering> {
    fn pair<T>(one: Result<T, impl Sized>, other: Result<T, impl Sized>) -> Option<(T, T)> {
        one.ok().zip(other.ok())
    }
    if let Some((one, other)) = pair::<INT>(one.as_int(), other.as_int()) {
        return Some(one.cmp(&other));
    }
    if let Some((one, other)) = pair::<FLOAT>(one.as_float(), other.as_float()) {
        return Some(one.total_cmp(&other));
    }
    if let Some((one, other)) = pair(one.as_char(), other.as_char()) {
        return Some(one.cmp(&other));
    }
    if let Some((one, other)) = pair(one.as_bool(), other.as_bool()) {
        return Some(one.cmp(&other));
    }
    let (one, other) = pair(one.as_immutable_string_ref(), other.as_immutable_string_ref())?;
    Some(ImmutableString::cmp(&one, &other))
}

/// Returns the elements in order; equal ones keep their order. Whatever `compare` returns, each element comes once.
fn merge_sort(
    list: &Array,
    checks: &SortChecks,
    mut compare: impl FnMut(&Dynamic, &Dynamic) -> EvalResult<Ordering>,
) -> EvalResult<Array> {
    let mut sorted: Vec<usize> = (0..list.len()).collect();
    let mut merged = Vec::with_capacity(sorted.len());
    let mut comparisons = 0;
    let mut width = 1;
    while width < sorted.len() {
        merged.clear();
        for run in sorted.chunks(2 * width) {
            let (mut left, mut right) = run.split_at(width.min(run.len()));
            while let (Some((one, left_rest)), Some((other, right_rest))) =
                (left.split_first(), right.split_first())
            {
                comparisons += 1;
                if comparisons % COMPARISONS_BETWEEN_LOOKS == 0 {
                    checks.check()?;
                }
                if compare(&list[*one], &list[*other])? == Ordering::Greater {
                    merged.push(*other);
                    right = right_rest;
                } else {
                    merged.push(*one);
                    left = left_rest;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(&mut sorted, &mut merged);
        width *= 2;
    }
    Ok(sorted.into_iter().map(|index| list[index].clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::run_alone;

    fn holds(script: &str) {
        run_alone(script, 10_000_000).unwrap_or_else(|error| panic!("{script}: {error}"));
    }

    #[test]
    fn lists_are_sorted_as_before() {
        holds(
            r#"
            fn same(got, expected) { if got != expected { throw `${got} instead of ${expected}`; } }
            let a = [3, 1, 2, 1]; a.sort(); same(a, [1, 1, 2, 3]);
            a.sort_desc(); same(a, [3, 2, 1, 1]);
            same([2.5, -1.0, 0.0].order(), [-1.0, 0.0, 2.5]);
            same(["b", "a", "é", ""].order_desc(), ["é", "b", "a", ""]);
            same(['b', 'a'].order(), ['a', 'b']);
            same([true, false].order(), [false, true]);
            same([(), ()].order(), [(), ()]);
            same([[1, 'a'], [0, 'b'], [1, 'c']].order_by(|x, y| x[0] - y[0]), [[0, 'b'], [1, 'a'], [1, 'c']]);
            let b = [1, 3, 2]; b.sort(|x, y| x > y); same(b, [3, 2, 1]);
            b.sort_by(|x, y| x - y); same(b, [1, 2, 3]);
            b.sort(|x, y| "odd"); same(b, [1, 2, 3]);
            same([3, 1].order(|x, y| x - y), [1, 3]);
            try { [1, "a"].sort(); throw "sorted"; } catch (why) { same(`${why}`.contains("different types"), true); }
            try { [[1], [2]].sort(); throw "sorted"; } catch (why) { same(`${why}`.contains("cannot be sorted"), true); }
            let c = [2, 1]; try { c.sort(|x, y| missing); } catch { } same(c, [2, 1]);
        "#,
        );
    }

    #[test]
    fn an_order_that_contradicts_itself_loses_no_element() {
        holds(
            r#"
            let nan = 0.0 / 0.0;
            let a = [];
            for n in 0..500 { a.push(if n % 3 == 0 { nan } else { (n * 7919 % 101).to_float() }); }
            a.sort(); a.sort_desc();
            if a.len() != 500 { throw "lost"; }
            let b = []; for n in 0..500 { b.push(n); }
            b.sort(|x, y| if (x * 7 + y * 13) % 5 < 2 { -1 } else { 1 });
            b.sort(|x, y| true); b.sort(|x, y| x % 2 - y % 3);
            b.sort();
            for n in 0..500 { if b[n] != n { throw `${n} is lost`; } }
        "#,
        );
    }

    #[test]
    fn an_endless_order_ends() {
        let endless = "[2, 1].sort(|x, y| { loop { } })";
        assert!(run_alone(endless, 100_000).is_err_and(|why| why.contains("operations")));
    }
}
