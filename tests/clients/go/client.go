// Talks to Mycora as a program in Go does: grpc-go, with stubs made from proto/.
//
// Submits a flow, watches it, breaks the watch and resumes it, reads results and logs, and makes sure that errors
// are what a program can act on: once with a client certificate and once with tokens. Prints a line for each check
// and closes with the counts.
package main

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "mycora/tests/clients/go/stubs/mycora/v1"
)

const deadline = time.Minute

// Checks counts what was checked.
type Checks struct {
	part           string
	passed, failed int
}

// That prints a check, and what was found when it does not hold.
func (c *Checks) That(what string, holds bool, otherwise any) {
	if holds {
		c.passed++
		fmt.Printf("ok   %s: %s\n", c.part, what)
	} else {
		c.failed++
		fmt.Printf("FAIL %s: %s: %v\n", c.part, what, otherwise)
	}
}

// checkAll does the same with each way to say who one is.
func checkAll(ctx context.Context, checks *Checks, profile *Profile, identity ...grpc.DialOption) error {
	if err := checkIdentity(ctx, checks, profile, identity...); err != nil {
		return err
	}
	connection, err := profile.Dial("scheduler", identity...)
	if err != nil {
		return err
	}
	defer connection.Close()
	client := &client{checks, pb.NewFlowServiceClient(connection), profile.Context}
	flow, err := client.checkSubmission(ctx)
	if err != nil {
		return err
	}
	client.checkRefusals(ctx)
	if err := client.checkWatching(ctx, flow); err != nil {
		return err
	}
	return client.checkResults(ctx, flow)
}

func checkIdentity(ctx context.Context, checks *Checks, profile *Profile, identity ...grpc.DialOption) error {
	connection, err := profile.Dial("storage", identity...)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	me, err := pb.NewActorServiceClient(connection).WhoAmI(ctx, &pb.WhoAmIRequest{})
	if err != nil {
		return err
	}
	checks.That("the server knows who calls", me.Actor.GetId() == profile.Actor, me)
	audience := "spiffe://" + profile.TrustDomain
	checks.That("and says for whom tokens are", me.TokenAudience == audience, me)
	return nil
}

func checkCertificate(ctx context.Context, checks *Checks, profile *Profile) error {
	certificate, err := profile.WithCertificate()
	if err != nil {
		return err
	}
	if err := checkAll(ctx, checks, profile, certificate); err != nil {
		return err
	}
	nobody, err := profile.Nobody()
	if err != nil {
		return err
	}
	return checkStranger(ctx, checks, profile, "who has none", "IDENTITY_REQUIRED", nobody)
}

func checkToken(ctx context.Context, checks *Checks, profile *Profile) error {
	nobody, err := profile.Nobody()
	if err != nil {
		return err
	}
	checks.That("the profile names a signing_key", profile.SigningKey != "", profile)
	if profile.SigningKey == "" {
		return nil
	}
	tokens, err := profile.Tokens()
	if err != nil {
		return err
	}
	if err := checkAll(ctx, checks, profile, nobody, grpc.WithPerRPCCredentials(tokens)); err != nil {
		return err
	}
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	elsewhere, misnamed := tokens, tokens
	elsewhere.TrustDomain, misnamed.KeyID = "elsewhere", Thumbprint(other)
	strange := map[string]Tokens{"who has one for another place": elsewhere, "who has one that names another key": misnamed}
	for who, tokens := range strange {
		shown := grpc.WithPerRPCCredentials(tokens)
		if err := checkStranger(ctx, checks, profile, who, "IDENTITY_UNUSABLE", nobody, shown); err != nil {
			return err
		}
	}
	return nil
}

func checkStranger(
	ctx context.Context, checks *Checks, profile *Profile, who, reason string, identity ...grpc.DialOption,
) error {
	connection, err := profile.Dial("scheduler", identity...)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	_, err = pb.NewFlowServiceClient(connection).ListFlows(ctx, &pb.ListFlowsRequest{ContextId: profile.Context})
	refusal := RefusalOf(err)
	unauthenticated := refusal.Code == codes.Unauthenticated && refusal.Reason == reason
	checks.That(who+" is UNAUTHENTICATED", unauthenticated, refusal)
	return nil
}

// busy is a server that has no time at first, as an overloaded scheduler.
type busy struct {
	pb.UnimplementedFlowServiceServer
	asked int
}

func (b *busy) GetFlow(_ context.Context, request *pb.GetFlowRequest) (*pb.GetFlowResponse, error) {
	b.asked++
	if b.asked == 1 {
		later := &errdetails.RetryInfo{RetryDelay: durationpb.New(10 * time.Millisecond)}
		refusal, err := status.New(codes.ResourceExhausted, "later").WithDetails(later)
		if err != nil {
			return nil, err
		}
		return nil, refusal.Err()
	}
	return &pb.GetFlowResponse{Flow: &pb.Flow{Id: request.FlowId}}, nil
}

func checkPatience(ctx context.Context, checks *Checks, _ *Profile) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server, busy := grpc.NewServer(), &busy{}
	pb.RegisterFlowServiceServer(server, busy)
	go server.Serve(listener)
	defer server.Stop()
	insecure := grpc.WithTransportCredentials(insecure.NewCredentials())
	connection, err := grpc.NewClient(listener.Addr().String(), insecure)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	answer, err := Patiently(ctx, func() (*pb.GetFlowResponse, error) {
		return pb.NewFlowServiceClient(connection).GetFlow(ctx, &pb.GetFlowRequest{FlowId: 7})
	})
	again := err == nil && answer.Flow.Id == 7 && busy.asked == 2
	checks.That("who is told when to try again does so", again, err)
	return nil
}

// part is what is checked in one go.
type part struct {
	name  string
	check func(context.Context, *Checks, *Profile) error
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: client PROFILE")
		os.Exit(2)
	}
	profile, err := LoadProfile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	checks := &Checks{}
	parts := []part{{"certificate", checkCertificate}, {"token", checkToken}, {"patience", checkPatience}}
	for _, part := range parts {
		checks.part = part.name
		if err := part.check(context.Background(), checks, profile); err != nil {
			checks.That("goes on to its end", false, RefusalOf(err))
		}
	}
	fmt.Printf("%d passed, %d failed\n", checks.passed, checks.failed)
	if checks.failed > 0 {
		os.Exit(1)
	}
}
