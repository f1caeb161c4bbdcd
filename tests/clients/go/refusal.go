package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const triesMax = 5

// Refusal is what a call that failed says to programs.
type Refusal struct {
	Code    codes.Code
	Message string
	// One of specs/errors.md.
	Reason string
	// What else there is for programs, such as the name of a limit.
	Metadata map[string]string
	// Everything that is wrong with the request, at once: field and description.
	Violations map[string]string
	// How long to wait before trying again; nil: as it is that will not help.
	Retry *time.Duration
}

// RefusalOf reads the details of a failed call.
func RefusalOf(err error) Refusal {
	said := status.Convert(err)
	refusal := Refusal{Code: said.Code(), Message: said.Message(), Violations: map[string]string{}}
	for _, detail := range said.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			refusal.Reason, refusal.Metadata = detail.Reason, detail.Metadata
		case *errdetails.BadRequest:
			for _, violation := range detail.FieldViolations {
				refusal.Violations[violation.Field] = violation.Description
			}
		case *errdetails.RetryInfo:
			delay := detail.RetryDelay.AsDuration()
			refusal.Retry = &delay
		}
	}
	return refusal
}

func (r Refusal) String() string {
	return fmt.Sprintf("%s %s %s %v %v %v", r.Code, r.Reason, r.Message, r.Metadata, r.Violations, r.Retry)
}

// Patiently gives the answer to a call, which is made again when the server says that it has no time now, and
// until when.
//
// What changes something needs a `request_id` for that: a call that was answered, and whose answer was lost,
// changes nothing the second time.
func Patiently[Answer any](ctx context.Context, call func() (Answer, error)) (Answer, error) {
	for range triesMax - 1 {
		answer, err := call()
		if err == nil {
			return answer, nil
		}
		refusal := RefusalOf(err)
		if refusal.Retry == nil {
			return answer, err
		}
		select {
		case <-time.After(*refusal.Retry):
		case <-ctx.Done():
			return answer, ctx.Err()
		}
	}
	return call()
}
