//! Samples of which tests make keys of each variant.

/// A part of a key, made of samples.
pub(crate) trait KeySample<S> {
    fn of(samples: &S) -> Self;
}

/// Says how parts of keys are made of samples.
macro_rules! key_samples {
    ($samples:ty: $($type:ty = |$of:ident| $made:expr),+ $(,)?) => {
        $(impl $crate::samples::KeySample<$samples> for $type {
            fn of($of: &$samples) -> Self {
                $made
            }
        })+
    };
}
pub(crate) use key_samples;
