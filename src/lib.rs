//! forbear
