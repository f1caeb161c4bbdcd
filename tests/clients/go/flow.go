package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "mycora/tests/clients/go/stubs/mycora/v1"
)

const numbers = 3

// shell is a node that runs a shell script.
func shell(name, script string) *pb.NodeSpec {
	source := &pb.Script{Source: &pb.Script_Text{Text: script}}
	return &pb.NodeSpec{Name: name, Job: &pb.JobSpec{ScriptType: pb.ScriptType_SCRIPT_TYPE_SHELL, Script: source}}
}

// sumOfDoubles has three numbers, doubled side by side, and added up when somebody gives the signal.
func sumOfDoubles(name string) *pb.FlowSpec {
	add := shell("add", `echo "total=$((N1 + N2 + N3))" >> "$MYCORA_RESULT"`)
	add.Prerequisites = []string{"signal:add-up"}
	add.Job.EnvVars = map[string]string{}
	flow := &pb.FlowSpec{Name: name}
	for n := 1; n <= numbers; n++ {
		double := fmt.Sprintf("double-%d", n)
		script := fmt.Sprintf(`echo "twice=$((2 * %d))" >> "$MYCORA_RESULT"; echo "doubled %d"`, n, n)
		flow.Nodes = append(flow.Nodes, shell(double, script))
		add.Depends = append(add.Depends, double)
		add.Job.EnvVars[fmt.Sprintf("N%d", n)] = fmt.Sprintf("${{ results.%s.twice }}", double)
	}
	flow.Nodes = append(flow.Nodes, add)
	return flow
}

// client is one connection's part of the scenario.
type client struct {
	*Checks
	flows   pb.FlowServiceClient
	context uint32
}

// submit gives the flow that was started. The request id makes it safe to try again.
func (c *client) submit(ctx context.Context, requestID string, flow *pb.FlowSpec) (*pb.Flow, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	request := &pb.SubmitFlowRequest{RequestId: requestID, ContextId: c.context, Flow: flow}
	answer, err := Patiently(ctx, func() (*pb.SubmitFlowResponse, error) {
		return c.flows.SubmitFlow(ctx, request)
	})
	return answer.GetFlow(), err
}

// checkSubmission starts the flow that the other checks are about.
func (c *client) checkSubmission(ctx context.Context) (*pb.Flow, error) {
	requestID, spec := uuid.NewString(), sumOfDoubles("from-go")
	flow, err := c.submit(ctx, requestID, spec)
	if err != nil {
		return nil, err
	}
	c.That("a flow is submitted", flow.Id > 0 && flow.NodeCount == 4, flow)
	again, err := c.submit(ctx, requestID, spec)
	c.That("the same request id gives the same flow", err == nil && again.GetUid() == flow.Uid, err)
	_, err = c.submit(ctx, requestID, sumOfDoubles("another"))
	refusal := RefusalOf(err)
	reused := refusal.Code == codes.AlreadyExists && refusal.Reason == "REQUEST_ID_REUSED"
	c.That("with another body it is refused", reused, refusal)
	return flow, nil
}

// watch tells what happens to a flow, all of it or what came after a position, until `enough` says so or the flow
// has ended.
func (c *client) watch(
	ctx context.Context, flow *pb.Flow, position string, timeout time.Duration, enough func(*pb.WatchFlowResponse) bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request := &pb.WatchFlowRequest{ContextId: flow.ContextId, FlowId: flow.Id, ResumePosition: position}
	stream, err := c.flows.WatchFlow(ctx, request)
	if err != nil {
		return err
	}
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil || enough(answer) {
			return err
		}
	}
}

// change is one that was told.
type change struct {
	job   uint32
	state pb.NodeState
}

// watched is what a watch has told.
type watched struct {
	snapshot bool
	// The nodes that are COMPLETED.
	completed map[uint32]bool
	changes   map[change]bool
	end       pb.FlowStatus
	position  string
}

func (w *watched) take(answer *pb.WatchFlowResponse) {
	if answer.ResumePosition != "" {
		w.position = answer.ResumePosition
	}
	told := func(job uint32, state pb.NodeState) {
		if state == pb.NodeState_NODE_STATE_COMPLETED {
			w.completed[job] = true
		}
	}
	switch event := answer.Event.(type) {
	case *pb.WatchFlowResponse_Flow:
		w.end = event.Flow.Status
	case *pb.WatchFlowResponse_Node:
		told(event.Node.JobId, event.Node.State)
	case *pb.WatchFlowResponse_SnapshotEnd:
		w.snapshot = true
	case *pb.WatchFlowResponse_NodeChange:
		told(event.NodeChange.JobId, event.NodeChange.State)
		w.changes[change{event.NodeChange.JobId, event.NodeChange.State}] = true
	}
}

func (c *client) checkWatching(ctx context.Context, flow *pb.Flow) error {
	before := &watched{completed: map[uint32]bool{}, changes: map[change]bool{}}
	err := c.watch(ctx, flow, "", deadline, func(answer *pb.WatchFlowResponse) bool {
		before.take(answer)
		return before.snapshot && len(before.completed) == numbers
	})
	c.That("a watch begins with a snapshot, and says where it is", err == nil && before.position != "", err)
	err = c.watch(ctx, flow, before.position, time.Second/2, func(*pb.WatchFlowResponse) bool { return false })
	c.That("a deadline ends it", status.Code(err) == codes.DeadlineExceeded, err)

	if err := c.signal(ctx, flow, "add-up"); err != nil {
		return err
	}
	after := &watched{completed: map[uint32]bool{}, changes: map[change]bool{}}
	err = c.watch(ctx, flow, before.position, deadline, func(answer *pb.WatchFlowResponse) bool {
		after.take(answer)
		return false
	})
	c.That("a watch that is resumed has no snapshot", !after.snapshot, "there was one")
	again := slices.DeleteFunc(slices.Collect(maps.Keys(after.changes)), func(c change) bool { return !before.changes[c] })
	c.That("tells no change again", len(again) == 0, again)
	maps.DeleteFunc(after.completed, func(job uint32, _ bool) bool { return before.completed[job] })
	c.That("tells what came after", len(after.completed) == 1, after.changes)
	finished := err == nil && after.end == pb.FlowStatus_FLOW_STATUS_FINISHED
	c.That("and ends when the flow is FINISHED", finished, after.end)
	return nil
}

func (c *client) signal(ctx context.Context, flow *pb.Flow, name string) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	_, err := c.flows.SignalFlow(ctx, &pb.SignalFlowRequest{
		RequestId: uuid.NewString(), ContextId: flow.ContextId, FlowId: flow.Id, Name: name,
	})
	return err
}

// pagesOf gives the flow's nodes, page by page.
func (c *client) pagesOf(ctx context.Context, flow *pb.Flow, pageSize uint32) (pages [][]*pb.FlowNode, err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	request := &pb.ListFlowNodesRequest{ContextId: flow.ContextId, FlowId: flow.Id, PageSize: pageSize}
	for {
		page, err := c.flows.ListFlowNodes(ctx, request)
		if err != nil {
			return nil, err
		}
		pages = append(pages, page.Nodes)
		if page.NextPageToken == "" {
			return pages, nil
		}
		request.PageToken = page.NextPageToken
	}
}

func (c *client) checkResults(ctx context.Context, flow *pb.Flow) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	answer, err := c.flows.GetFlow(ctx, &pb.GetFlowRequest{ContextId: flow.ContextId, FlowId: flow.Id})
	if err != nil {
		return err
	}
	result := answer.Flow.Result
	c.That("the flow's result is what was computed", len(result) == 1 && result["add.total"] == "12", result)
	pages, err := c.pagesOf(ctx, flow, 3)
	if err != nil {
		return err
	}
	c.That("its nodes come in pages", len(pages) == 2 && len(pages[0]) == 3 && len(pages[1]) == 1, pages)
	nodes, completed := map[string]*pb.FlowNode{}, 0
	for _, node := range slices.Concat(pages...) {
		nodes[node.Name] = node
		if node.State == pb.NodeState_NODE_STATE_COMPLETED && node.ExitCode != nil && *node.ExitCode == 0 {
			completed++
		}
	}
	c.That("all are COMPLETED", len(nodes) == 4 && completed == 4, nodes)
	twice := nodes["double-3"].GetResult()["twice"]
	c.That("a node's result can be read", twice == "6", twice)
	return c.checkLogs(ctx, flow)
}

func (c *client) checkLogs(ctx context.Context, flow *pb.Flow) error {
	request := &pb.StreamFlowLogsRequest{ContextId: flow.ContextId, FlowId: flow.Id, Node: "double-2", Follow: true}
	text, err := c.logs(ctx, request)
	if err != nil {
		return err
	}
	c.That("what a job printed can be read after its end", text == "doubled 2\n", text)
	request.Attempt, request.Offset = 1, uint64(len("doubled "))
	text, err = c.logs(ctx, request)
	c.That("also from a byte on", text == "2\n", text)
	return err
}

// logs gives what a job printed.
func (c *client) logs(ctx context.Context, request *pb.StreamFlowLogsRequest) (string, error) {
	stream, err := c.flows.StreamFlowLogs(ctx, request)
	if err != nil {
		return "", err
	}
	var text []byte
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return string(text), nil
		}
		if err != nil {
			return "", err
		}
		text = append(text, piece.Data...)
	}
}

func (c *client) checkRefusals(ctx context.Context) {
	eager := shell("eager", "true")
	eager.Policy = &pb.NodePolicy{Retries: 101}
	nodes := []*pb.NodeSpec{shell("c d", "true"), eager}
	_, err := c.submit(ctx, uuid.NewString(), &pb.FlowSpec{Name: "", Nodes: nodes})
	refusal := RefusalOf(err)
	invalid := refusal.Code == codes.InvalidArgument && refusal.Reason == "INVALID_REQUEST"
	c.That("a flow that cannot be is INVALID_ARGUMENT", invalid, refusal)
	fields := slices.Sorted(maps.Keys(refusal.Violations))
	all := []string{"flow.name", "flow.nodes[0].name", "flow.nodes[1].policy.retries"}
	c.That("with all violations at once", slices.Equal(fields, all), refusal)

	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	_, err = c.flows.GetFlow(ctx, &pb.GetFlowRequest{ContextId: c.context, FlowId: 4_000_000_000})
	refusal = RefusalOf(err)
	notFound := refusal.Code == codes.NotFound && refusal.Reason == "NOT_FOUND"
	c.That("an unknown flow is NOT_FOUND", notFound, refusal)
}
