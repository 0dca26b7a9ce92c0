//! forbear

pub mod signals;

pub use signals::{Budget, Class, Profile, Signals, Source};
