//! Keys that live as long as who keeps them.

use crate::health::Part;
use crate::{PAUSES, Shared, attempt, locked};
use etcd_client::{Client, PutOptions};
use std::sync::Arc;
use std::time::Duration;

/// Keeps a key, and makes it anew when etcd has lost it.
pub(crate) async fn keep(mut client: Client, shared: Arc<Shared>, key: String, value: Vec<u8>, ttl: i64) {
    let mut pause = PAUSES.0;
    loop {
        let begun = attempt(async {
            let lease = client.lease_grant(ttl, None).await?.id();
            client.put(key.clone(), value.clone(), Some(PutOptions::new().with_lease(lease))).await?;
            Ok(lease)
        });
        let outcome = begun.await;
        shared.watch.note(Part::Leases, &outcome);
        let Ok(lease) = outcome else {
            // If only the answer was lost, the lease of this attempt ends by itself.
            tokio::time::sleep(pause).await;
            pause = PAUSES.1.min(pause * 2);
            continue;
        };
        pause = PAUSES.0;
        locked(&shared.leases).insert(key.clone(), lease);
        renew(&client, &shared, lease, ttl).await;
    }
}

/// Renews a lease until etcd says that there is none. While etcd is silent it may have kept it.
pub(crate) async fn renew(client: &Client, shared: &Shared, lease: i64, ttl: i64) {
    let often = Duration::from_secs(ttl.clamp(3, 3600) as u64 / 3);
    let mut client = client.clone();
    loop {
        tokio::time::sleep(often).await;
        loop {
            let renewed = attempt(async {
                match client.lease_keep_alive(lease).await {
                    Ok(_) => Ok(true),
                    Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(false),
                    Err(error) => Err(error),
                }
            });
            let outcome = renewed.await;
            shared.watch.note(Part::Leases, &outcome);
            match outcome {
                Ok(true) => break,
                Ok(false) => return,
                Err(_) => tokio::time::sleep(PAUSES.1.min(often)).await,
            }
        }
    }
}
