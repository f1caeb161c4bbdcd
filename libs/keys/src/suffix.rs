//! Names of keys: how their ends are written and taken apart, strictly, since every key has exactly one spelling.

use std::fmt::{self, Display};
use std::str::FromStr;

/// A number without sign, blanks or leading zeros.
pub(crate) fn number<N: FromStr + Display>(text: &str) -> Option<N> {
    exact(text)
}

/// Parses a value whose canonical text is exactly `text`.
pub(crate) fn exact<T: FromStr + Display>(text: &str) -> Option<T> {
    let value: T = text.parse().ok()?;
    (value.to_string() == text).then_some(value)
}

/// Writes a key: what it begins with, its parts between colons, and what it ends with.
pub(crate) fn write_key(
    f: &mut fmt::Formatter<'_>,
    begin: &str,
    parts: &[&dyn Display],
    end: &str,
) -> fmt::Result {
    f.write_str(begin)?;
    for (n, part) in parts.iter().enumerate() {
        if n > 0 {
            f.write_str(":")?;
        }
        write!(f, "{part}")?;
    }
    f.write_str(end)
}

/// One part of a key.
pub(crate) trait KeySuffixPart: Sized {
    fn read(text: &str) -> Option<Self>;
}

/// Makes what the variants of each table of keys have: their names, and for tests a key of each.
macro_rules! key_variants {
    ($key:ident: $($variant:ident $(($($part:ident: $type:ty),+))?;)+) => {
        impl $key {
            /// The names of all variants.
            pub const VARIANTS: &[&str] = &[$(stringify!($variant)),+];

            /// The name of this variant.
            #[must_use]
            #[expect(unused_variables, reason = "the parts have names so that they can be counted")]
            pub const fn variant(&self) -> &'static str {
                match self {
                    $(Self::$variant $(($($part),+))? => stringify!($variant),)+
                }
            }

            /// A key of each variant.
            #[cfg(test)]
            pub(crate) fn of_each<S>(samples: &S) -> Vec<Self>
            where
                $($($($type: $crate::samples::KeySample<S>,)+)?)+
            {
                vec![$(Self::$variant $(($(<$type as $crate::samples::KeySample<S>>::of(samples)),+))?),+]
            }
        }
    };
}
pub(crate) use key_variants;

/// Says how parts of keys are read from their texts.
macro_rules! key_parts {
    ($($type:ty = $read:expr),+ $(,)?) => {
        $(impl $crate::suffix::KeySuffixPart for $type {
            fn read(text: &str) -> Option<Self> {
                $read(text)
            }
        })+
    };
}
pub(crate) use key_parts;

/// All parts of a key; a colon follows each but the last, and only that may have colons in it.
pub(crate) trait KeySuffix: Sized {
    fn read(text: &str) -> Option<Self>;
}

impl KeySuffix for () {
    fn read(text: &str) -> Option<Self> {
        text.is_empty().then_some(())
    }
}

impl<A: KeySuffixPart> KeySuffix for (A,) {
    fn read(text: &str) -> Option<Self> {
        A::read(text).map(|part| (part,))
    }
}

impl<A: KeySuffixPart, B: KeySuffixPart> KeySuffix for (A, B) {
    fn read(text: &str) -> Option<Self> {
        let (a, b) = text.split_once(':')?;
        Some((A::read(a)?, B::read(b)?))
    }
}

impl<A: KeySuffixPart, B: KeySuffixPart, C: KeySuffixPart> KeySuffix for (A, B, C) {
    fn read(text: &str) -> Option<Self> {
        let (a, rest) = text.split_once(':')?;
        let (b, c) = <(B, C)>::read(rest)?;
        Some((A::read(a)?, b, c))
    }
}
