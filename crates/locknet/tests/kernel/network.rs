//! Between network namespaces.
