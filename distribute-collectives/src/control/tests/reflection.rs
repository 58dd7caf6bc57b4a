//! What any gRPC client can ask about the services.

use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::*;

#[test]
fn reflection_lists_the_services_and_their_files() {
    within_limit(|| {
        let members = group(1);
        services::client(async {
            let channel = services::channel(&members[0]).await;
            let mut client = ServerReflectionClient::new(channel);
            let ask = |request| ServerReflectionRequest {
                host: String::new(),
                message_request: Some(request),
            };
            let requests = tokio_stream::iter([
                ask(MessageRequest::ListServices(String::new())),
                ask(MessageRequest::FileContainingSymbol(
                    "distribute.v1.Collectives".to_string(),
                )),
            ]);
            let response = client.server_reflection_info(requests).await.unwrap();
            let mut answers = response.into_inner();
            let list = answers.message().await.unwrap().unwrap().message_response;
            let Some(MessageResponse::ListServicesResponse(list)) = list else {
                panic!("{list:?}");
            };
            let names: Vec<_> = list.service.iter().map(|service| &*service.name).collect();
            for name in ["distribute.v1.Control", "grpc.health.v1.Health"] {
                assert!(names.contains(&name), "{names:?}");
            }
            let file = answers.message().await.unwrap().unwrap().message_response;
            let found = matches!(file, Some(MessageResponse::FileDescriptorResponse(_)));
            assert!(found, "{file:?}");
        });
    });
}
