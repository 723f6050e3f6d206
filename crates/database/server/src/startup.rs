//! The beginning of a connection: who it is, and what it is told.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::{Sink, SinkExt};
use pgwire::api::auth::driver::{AuthDriver, AuthOutcome};
use pgwire::api::auth::mechanism::AuthMechanismFactory;
use pgwire::api::auth::sasl::scram::ScramAuth;
use pgwire::api::auth::{
    ServerParameterProvider, StartupHandler, finish_authentication, protocol_negotiation,
    save_startup_parameters_to_metadata,
};
use pgwire::api::{ClientInfo, METADATA_DATABASE, METADATA_USER};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::startup::{PasswordMessageFamily, SecretKey};
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};

use crate::audit::{Audit, Of};
use crate::backoff::Backoff;
use crate::error::Refusal;
use crate::logins::{Entry, Full};
use crate::parameters;
use crate::reads::{self, LEVEL};
use crate::rights::Right;
use crate::session::{Session, fatal};
use crate::session_settings::{DEFAULT_READ_ONLY, IN_STANDBY, ISOLATION};
use crate::settings::SEARCH_PATH;
use crate::tls::Tls;
use crate::users::{Login, Users};

/// How long a wrong password takes.
const WRONG_PASSWORD: Duration = Duration::from_millis(250);

/// How connections prove who they are. Without users everybody may do everything.
#[derive(Debug, Default)]
pub(crate) struct Access {
    plain: Option<ScramAuth<Login>>,
    /// As `plain`, bound to the certificate.
    bound: Option<ScramAuth<Login>>,
    has_tls: bool,
    backoff: Arc<Backoff>,
    audit: Option<Audit>,
}

impl Access {
    pub(crate) fn new(users: Option<Arc<Users>>, audit: Option<Audit>, tls: Option<&Tls>) -> PgWireResult<Self> {
        let plain = users.map(|users| ScramAuth::new(users));
        let mut bound = plain.clone().filter(|_| tls.is_some());
        if let (Some(scram), Some(tls)) = (&mut bound, tls) {
            scram.configure_certificate(&tls.certificate)?;
        }
        Ok(Self { plain, bound, has_tls: tls.is_some(), backoff: Arc::default(), audit })
    }
}

pub(crate) struct Startup {
    access: Arc<Access>,
    session: Arc<Session>,
    entry: Arc<Entry>,
    driver: AuthDriver<Parameters, Login>,
    parameters: Parameters,
    /// The client has sent the first of its two messages of a login: the next one is its proof.
    has_begun: AtomicBool,
}

impl Startup {
    pub(crate) fn new(access: Arc<Access>, session: Arc<Session>, entry: Arc<Entry>) -> Self {
        let parameters = Parameters(session.clone());
        let driver = AuthDriver::new(parameters.clone());
        Self { access, session, entry, driver, parameters, has_begun: AtomicBool::new(false) }
    }

    /// Gives the client a session: a place, and what it may do.
    fn admit<C: ClientInfo>(&self, client: &C, login: Option<Login>) -> PgWireResult<()> {
        let user = name(client);
        if let Err(full) = self.entry.seat(user, login) {
            if full != Full::Displaced {
                self.session.database.watch.refused.fetch_add(1, Ordering::Relaxed);
            }
            self.refused(client, full.message());
            return Err(PgWireError::UserError(Box::new(fatal("53300", full.message()))));
        }
        let right = login.map_or(Right::Define, |login| login.right);
        self.session.permit(right, of(client), self.entry.id(), login.is_some());
        tracing::debug!(user, address = %client.socket_addr(), session = self.entry.id(), %right, "a session begins");
        if let Some(audit) = &self.access.audit {
            let database = client.metadata().get(METADATA_DATABASE).map_or(user, String::as_str);
            audit.login(of(client), self.entry.id(), &right.to_string(), database);
        }
        Ok(())
    }

    fn refused<C: ClientInfo>(&self, client: &C, reason: &str) {
        tracing::debug!(user = name(client), address = %client.socket_addr(), "a client is refused: {reason}");
        if let Some(audit) = &self.access.audit {
            audit.refused(of(client), reason);
        }
    }

    /// Looks at a message of a login. A proof waits before, if others of the same user from the same address
    /// were wrong.
    async fn advance<C>(&self, client: &mut C, message: PasswordMessageFamily) -> PgWireResult<AuthOutcome<Login>>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let (address, user) = (client.socket_addr().ip(), name(client).to_string());
        let backoff = &self.access.backoff;
        if self.has_begun.swap(true, Ordering::Relaxed) {
            let Some(waiting) = backoff.wait(address, &user, Instant::now()) else {
                self.session.count_wrong_login();
                self.refused(client, "too many wrong passwords");
                tokio::time::sleep(WRONG_PASSWORD).await;
                let message = "too many logins of this user have failed from this address, and others wait; try again";
                return Err(PgWireError::UserError(Box::new(fatal("28000", message))));
            };
            if !waiting.delay.is_zero() {
                tokio::time::sleep(waiting.delay).await;
            }
        }
        let advanced = self.driver.advance_authentication(client, message).await;
        match &advanced {
            Ok(AuthOutcome::Authenticated { identity: Some(_), .. }) => backoff.succeeded(address, &user),
            Ok(AuthOutcome::InProgress) => {}
            Ok(AuthOutcome::Authenticated { identity: None, .. }) | Err(_) => {
                backoff.failed(address, &user, Instant::now());
                self.session.count_wrong_login();
                self.refused(client, "wrong password");
                tokio::time::sleep(WRONG_PASSWORD).await;
            }
        }
        advanced.map_err(|error| match error {
            PgWireError::InvalidPassword(_) => wrong_password(client),
            other => other,
        })
    }
}

/// The user that a client says it is.
fn name<C: ClientInfo>(client: &C) -> &str {
    client.metadata().get(METADATA_USER).map_or("", String::as_str)
}

/// Whose events those of a client are.
fn of<C: ClientInfo>(client: &C) -> Of<'_> {
    Of { user: name(client), address: client.socket_addr(), tls: client.is_secure() }
}

impl Startup {
    /// Takes the settings that the client begins with, and refuses who does not only read where another node leads.
    fn begin(&self, parameters: &BTreeMap<String, String>) -> PgWireResult<()> {
        let refused = |sqlstate: &str, message: &str| PgWireError::UserError(Box::new(fatal(sqlstate, message)));
        let Session { reader, database, settings, .. } = &*self.session;
        let of_client = |refusal: Refusal| refused(&refusal.sqlstate, &refusal.message);
        reader.begin(parameters).map_err(of_client)?;
        settings.begin(&reads::settings(parameters)).map_err(of_client)?;
        match database.elsewhere(reader.is_read_only()) {
            Some(why) => Err(refused("57P03", &why)),
            None => Ok(()),
        }
    }
}

/// The same for a user that does not exist.
fn wrong_password<C: ClientInfo>(client: &C) -> PgWireError {
    PgWireError::InvalidPassword(name(client).to_string())
}

#[derive(Clone)]
struct Parameters(Arc<Session>);

impl ServerParameterProvider for Parameters {
    fn server_parameters<C>(&self, client: &C) -> Option<HashMap<String, String>>
    where
        C: ClientInfo,
    {
        let mut parameters: HashMap<String, String> =
            parameters::LIST.iter().map(|&(name, value)| (name.to_string(), value.to_string())).collect();
        for (name, told) in [("application_name", "application_name"), ("user", "session_authorization")] {
            if let Some(value) = client.metadata().get(name) {
                parameters.insert(told.into(), value.clone());
            }
        }
        // By these clients find who leads, or who does not, in a list of hosts.
        for (name, is_on) in [
            (IN_STANDBY, self.0.database.follows()),
            (DEFAULT_READ_ONLY, self.0.database.follows() || self.0.reader.is_read_only()),
        ] {
            parameters.insert(name.into(), if is_on { "on" } else { "off" }.into());
        }
        if let Some(path) = self.0.settings.shown(SEARCH_PATH) {
            parameters.insert(SEARCH_PATH.into(), path);
        }
        for name in ISOLATION.into_iter().filter(|_| self.0.database.follows()) {
            parameters.insert(name.into(), LEVEL.into());
        }
        Some(parameters)
    }
}

#[async_trait]
impl StartupHandler for Startup {
    async fn on_startup<C>(&self, client: &mut C, message: PgWireFrontendMessage) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let outcome = match message {
            PgWireFrontendMessage::Startup(ref startup) => {
                protocol_negotiation(client, startup).await?;
                save_startup_parameters_to_metadata(client, startup);
                let (number, secret) = self.session.key;
                client.set_pid_and_secret_key(number, SecretKey::I32(secret));
                if startup.parameters.get("user").is_none_or(String::is_empty) {
                    let refused = fatal("28000", "the first message names no user");
                    return Err(PgWireError::UserError(Box::new(refused)));
                }
                let encoding = startup.parameters.get("client_encoding");
                if let Some(other) = encoding.filter(|encoding| !parameters::is_utf8(encoding)) {
                    let refused = fatal("0A000", &parameters::other_encoding(other).message);
                    return Err(PgWireError::UserError(Box::new(refused)));
                }
                self.begin(&startup.parameters)?;
                let is_near = client.socket_addr().ip().is_loopback();
                if self.access.has_tls && !client.is_secure() && !is_near {
                    let refused = fatal("28000", "from other machines this server takes connections with TLS only");
                    return Err(PgWireError::UserError(Box::new(refused)));
                }
                let scram = if client.is_secure() { &self.access.bound } else { &self.access.plain };
                let Some(scram) = scram else {
                    self.admit(client, None)?;
                    finish_authentication(client, &self.parameters).await?;
                    return Ok(client.flush().await?);
                };
                self.driver.begin_authentication(client, scram.create()).await?
            }
            PgWireFrontendMessage::PasswordMessageFamily(message) => self.advance(client, message).await?,
            _ => return Ok(()),
        };
        if let AuthOutcome::Authenticated { identity, final_message } = outcome {
            let login = identity.ok_or_else(|| wrong_password(client))?;
            self.admit(client, Some(login))?;
            self.driver.complete_authentication(client, final_message).await?;
            client.flush().await?;
        }
        Ok(())
    }
}
