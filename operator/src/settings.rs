//! What the chart says of every Agent: the same for all, and an input of each plan.

use serde_json::{Value, json};

/// Settings of the installation.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Image of sidecar and shim; a tag or a digest.
    pub sidecar_image: String,
    /// DNS domain of the cluster, such as `cluster.local`.
    pub cluster_domain: String,
    /// Pull secrets for the sidecar's image; they have to exist in the namespaces of the Agents.
    pub image_pull_secrets: Vec<String>,
    /// Requests and limits of the sidecar.
    pub sidecar_resources: Value,
    /// Requests and limits of the init container that brings the shim.
    pub install_resources: Value,
    /// Requests and limits of a tool that gives none.
    pub tool_resources: Value,
    /// Image with Node.js, `npx` and a shell for packages of the npm registry; empty where there is none.
    pub npm_runner: String,
    /// Image with Python and `uvx` for packages of the Python Package Index; empty where there is none.
    pub pypi_runner: String,
}

impl Settings {
    /// Settings with the defaults of everything but the image.
    pub fn new(sidecar_image: impl Into<String>) -> Self {
        Self {
            sidecar_image: sidecar_image.into(),
            cluster_domain: "cluster.local".into(),
            image_pull_secrets: Vec::new(),
            sidecar_resources: default_sidecar_resources(),
            install_resources: default_install_resources(),
            tool_resources: default_tool_resources(),
            npm_runner: String::new(),
            pypi_runner: String::new(),
        }
    }
}

/// Requests and limits of the sidecar where the chart gives none.
pub fn default_sidecar_resources() -> Value {
    json!({"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}})
}

/// Requests and limits of the shim's init container where the chart gives none.
pub fn default_install_resources() -> Value {
    json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}})
}

/// Requests and limits of a tool where neither chart nor `MCPServer` give any.
pub fn default_tool_resources() -> Value {
    json!({"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}})
}
